"""The demo's table and its picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kernelwright.results.report.curves import number, ticks
from kernelwright.results.store.folder import write_atomically
from kernelwright.results.store.training import Training
from kernelwright.rl_training.demo.demo import Seed
from kernelwright.rl_training.demo.settings import DemoSettings
from kernelwright.rl_training.demo.trial import Tried
from kernelwright.rl_training.evaluation.scores import geomean
from kernelwright.rl_training.templating import template
from kernelwright.rl_training.tracking.run import TrainingFolder

POLICIES = ("before SFT", "after SFT", "after RL")
SEARCHES = ("random schedules", "enumeration")
KINDS = (("rewarded", False), ("held out", True))
COLOURS = {
    "after SFT": "#8a8a8a",
    "after RL": "#c0392b",
    "random schedules": "#2e86c1",
    "enumeration": "#27ae60",
}


@dataclass(frozen=True)
class Row:
    method: str
    kind: str
    valid: float  # share of all its files
    distinct: float  # share of all its files: those that are valid, each once
    best_of: Mapping[int, tuple[float, ...]]  # n -> the geometric mean over tasks, for each seed

    def spread(self, n: int) -> str:
        """Format the mean over seeds with its range."""
        values = self.best_of.get(n, ())
        if not values:
            return "—"
        middle = geomean(values)
        return f"{middle:.2f}" + (f" ({min(values):.2f}–{max(values):.2f})" if len(values) > 1 else "")


def rows(seeds: Sequence[Seed]) -> list[Row]:
    """Return rows for each kind of task: policies, then searches, then the best of all schedules."""
    found = []
    for kind, held in KINDS:
        for method in (*POLICIES, *SEARCHES, "all schedules"):
            tried = [t for seed in seeds for t in seed.tried if t.method == method and t.held == held]
            if tried:
                valid, distinct = (
                    sum(getattr(t, of) for t in tried) / sum(t.files for t in tried)
                    for of in ("valid", "distinct")
                )
                found.append(Row(method, kind, valid, distinct, _best(tried)))
    return found


def _best(tried: Sequence[Tried]) -> dict[int, tuple[float, ...]]:
    """Return n -> best of n per seed; n is 0 for "all schedules", whose n differ from task to task."""
    by_seed: dict[int, dict[int, list[float]]] = {}
    for t in tried:
        for n, value in t.best_of.items():
            counted = 0 if t.method == "all schedules" else n
            by_seed.setdefault(counted, {}).setdefault(t.seed, []).append(value)
    return {n: tuple(geomean(values) for values in by_seed[n].values()) for n in sorted(by_seed)}


def table(seeds: Sequence[Seed], settings: DemoSettings) -> list[str]:
    """Return the table as Markdown."""
    lines = [
        "| tasks | method | valid | distinct | " + " | ".join(f"best of {n}" for n in settings.tries) + " |",
        "| --- | --- | --- | --- | " + " | ".join("---" for _ in settings.tries) + " |",
    ]
    for row in rows(seeds):
        if row.method == "all schedules":
            cells = [f"**{row.spread(0)}**", *["" for _ in settings.tries[1:]]]
        else:
            cells = [row.spread(n) for n in settings.tries]
        lines.append(
            f"| {row.kind} | {row.method} | {row.valid:.0%} | {row.distinct:.0%} | {' | '.join(cells)} |"
        )
    return lines


def page(run: TrainingFolder, seeds: Sequence[Seed], settings: DemoSettings, known: int) -> str:
    spent = [seed.seconds for seed in seeds]
    return template("demo.md").render(
        table=table(seeds, settings),
        settings=settings,
        known=known,
        seeds=[seed.seed for seed in seeds],
        evaluations=[seed.evaluations for seed in seeds],
        spent=spent,
        minutes=_since(run.manifest.started),
        starts=len(Training.read(run.path).starts),
        mark=run.manifest.machine,
        command=run.manifest.command,
    )


def _since(started: str) -> float:
    """Return the minutes since `started`."""
    return (datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds() / 60


_WIDTH, _HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 408, 40, 262


def picture(
    rows: Sequence[Row],
    tries: Sequence[int],
    kinds: Sequence[str] = ("rewarded", "held out"),
    colours: Mapping[str, str] = COLOURS,
) -> str:
    """Return an SVG of the best of n over n: a panel per kind of task, a line per method and seed.

    A line begins and ends with the n that its method has; `colours` are those of the methods that are shown.
    """
    found = [row for row in rows if row.method in colours]
    values = [v for row in found for spread in row.best_of.values() for v in spread]
    top = max([*values, *(row.best_of[0][0] for row in rows if row.method == "all schedules")]) * 1.05
    low = min(1.0, *values) * 0.95 if values else 0.0
    places = {n: _LEFT + (_RIGHT - _LEFT) * i / max(1, len(tries) - 1) for i, n in enumerate(tries)}

    def height(value: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * (value - low) / (top - low), 1)

    panels = []
    for number_, kind in enumerate(kinds):
        lines = []
        for row in found:
            if row.kind != kind:
                continue
            for place in range(max(map(len, row.best_of.values()), default=0)):
                points = [
                    (places[n], height(spread[place]))
                    for n, spread in row.best_of.items()
                    if n in places and place < len(spread)
                ]
                lines.append(
                    {"colour": colours[row.method], "points": " ".join(f"{x:.1f},{y}" for x, y in points)}
                )
        every = [row.best_of[0][0] for row in rows if row.kind == kind and row.method == "all schedules"]
        panels.append(
            {
                "title": f"{kind} tasks",
                "shift": number_ * _WIDTH,
                "lines": lines,
                "all": height(every[0]) if every else None,
            }
        )
    return template("demo.svg").render(
        panels=panels,
        width=_WIDTH * len(kinds),
        height=_HEIGHT + 24 * 2,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM,
        x_ticks=[(places[n], n) for n in tries],
        y_ticks=[(height(tick), number(tick)) for tick in ticks(low, top, 5)],
        legend=[(name, colour, 60 + 190 * i) for i, (name, colour) in enumerate(colours.items())],
    )


def write(run: TrainingFolder, seeds: Sequence[Seed], settings: DemoSettings, known: int) -> None:
    """Write table.md and curves.svg into the demo's folder."""
    write_atomically(run.path / "table.md", page(run, seeds, settings, known))
    write_atomically(run.path / "curves.svg", picture(rows(seeds), settings.tries))
