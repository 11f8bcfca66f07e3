"""Plot of the published speedups with their 95% intervals: results/published/cpu/speedups.svg.

    python results/published/scripts/speedups.py

Reads suite-level1.csv, suite-level2.csv, suite-level3.csv and upstream.csv; measures nothing. Tasks that the
audit says measure nothing are left out, as they are of the tables' means.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

SCRIPTS = Path(__file__).parent
TABLES = SCRIPTS.parent / "cpu"
SUITES = {
    "suite-level1": "level 1, operators",
    "suite-level2": "level 2, fusions",
    "suite-level3": "level 3, models",
    "upstream": "KernelBench sample",
}
PANELS = {
    "eager": "Speedup over eager PyTorch",
    "fastest": "Speedup over the fastest of eager, torch.compile and max-autotune",
}
# In SVG user units.
LEFT, STEP, GAP, NARROWEST, TOP, HEIGHT, BETWEEN = 46, 4.5, 20, 122, 66, 190, 58
TICKS = (1, 2, 4, 8, 16, 32)
LOW, HIGH = 0.6, 34.0  # of the axis; what reaches beyond is drawn up to it


@dataclass(frozen=True)
class Mark:
    title: str  # shown where the pointer rests on it
    x: float
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Group:
    name: str
    kind: int  # of its colour
    left: float
    mean: float
    marks: list[Mark]


def read(table: str, baseline: str) -> list[tuple[str, float, float, float]]:
    """Task, lower bound, median and upper bound of each task that measures something, slowest first."""
    with (TABLES / f"{table}.csv").open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["verdict"] == "correct" and row["measures_nothing"] == "false"
        ]
    keys = [f"speedup_{baseline}_{key}" for key in ("low", "median", "high")]
    found = [(row["task"], *(float(row[key]) for key in keys)) for row in rows]
    return sorted(found, key=lambda row: row[2])


def y_of(speedup: float, top: float) -> float:
    """Where a speedup lies in the panel that begins at `top`; the axis is logarithmic."""
    share = math.log(min(max(speedup, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(top + HEIGHT * (1 - share), 1)


def groups_of(baseline: str, top: float) -> tuple[list[Group], float]:
    """The groups of one panel, side by side, and where the last one ends."""
    groups, x = [], LEFT + 6.0
    for kind, (table, name) in enumerate(SUITES.items()):
        rows = read(table, baseline)
        marks = []
        for n, (task, *interval) in enumerate(rows):
            low, median, high = interval
            title = f"{task}: {median:.2f} [{low:.2f}, {high:.2f}]"
            marks.append(Mark(title, round(x + STEP * n, 1), *(y_of(value, top) for value in interval)))
        mean = math.exp(sum(math.log(median) for _, _, median, _ in rows) / len(rows))
        groups.append(Group(f"{name} ({len(rows)})", kind, round(x, 1), mean, marks))
        x += max(STEP * len(rows), NARROWEST) + GAP
    return groups, x - GAP


def main() -> None:
    panels = []
    for number, (baseline, title) in enumerate(PANELS.items()):
        top = TOP + number * (HEIGHT + BETWEEN)
        groups, right = groups_of(baseline, top)
        ticks = [(tick, y_of(tick, top)) for tick in TICKS]
        panels.append({"title": title, "top": top, "groups": groups, "ticks": ticks, "right": right + 8})
    templates = Environment(
        loader=FileSystemLoader(SCRIPTS), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    drawn = templates.get_template("speedups.svg.j2").render(
        panels=panels,
        left=LEFT,
        height=HEIGHT,
        width=round(max(panel["right"] for panel in panels) + 16),
        total=TOP + len(panels) * (HEIGHT + BETWEEN) - 14,
    )
    (TABLES / "speedups.svg").write_text(drawn + "\n")


if __name__ == "__main__":
    main()
