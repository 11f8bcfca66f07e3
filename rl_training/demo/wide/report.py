"""The table of a demo over the wide space: each comparison of its claim, each method, every seed."""

from collections.abc import Sequence

from kernelwright.results.store.folder import write_atomically
from kernelwright.results.store.training import Training
from kernelwright.rl_training.demo.online import seconds_of
from kernelwright.rl_training.demo.report import Row, picture
from kernelwright.rl_training.demo.wide.claim import (
    CHANCE,
    POLICY,
    SEARCH,
    VALUE,
    PairedResult,
    PolicyClaim,
    compared,
)
from kernelwright.rl_training.demo.wide.tasks import Kind
from kernelwright.rl_training.demo.wide.trial import WideResult
from kernelwright.rl_training.evaluation.scores import geomean
from kernelwright.rl_training.templating import template
from kernelwright.rl_training.tracking.run import TrainingFolder

_KINDS: tuple[Kind, ...] = ("held out", "suite")
_COLOURS = {POLICY: "#c0392b", CHANCE: "#2e86c1", VALUE: "#8e44ad", SEARCH: "#27ae60"}


def claim_table(found: Sequence[PairedResult]) -> list[str]:
    """Return what came of each comparison, as Markdown."""
    seeds = sorted({seed for each in found for seed in each.by_seed})
    lines = [
        "| claimed | ratio | 95% interval | " + " | ".join(f"seed {seed}" for seed in seeds) + " | |",
        "| --- | --- | --- | " + " | ".join("---" for _ in seeds) + " | --- |",
    ]
    for each in found:
        own = " | ".join(f"{each.by_seed[seed]:.3f}" if seed in each.by_seed else "—" for seed in seeds)
        interval = f"{each.low:.3f} to {each.high:.3f}"
        lines.append(
            f"| {each.comparison.text} | {each.ratio:.3f} | {interval} | {own} | **{each.verdict}** |"
        )
    return lines


def rows(results: Sequence[WideResult]) -> list[Row]:
    """Return the geometric means over tasks of each method, a value for each seed."""
    found = []
    for kind in _KINDS:
        for method in (POLICY, CHANCE, VALUE, SEARCH):
            own = [each for each in results if (each.kind, each.method) == (kind, method)]
            seeds = sorted({each.seed for each in own})
            best_of = {
                n: tuple(geomean([e.best_of[n] for e in own if e.seed == seed]) for seed in seeds)
                for n in sorted({n for each in own for n in each.best_of})
            }
            if own:
                candidates = sum(len(each.lows) for each in own)
                valid, distinct = (
                    sum(getattr(e, of) for e in own) / candidates for of in ("valid", "distinct")
                )
                found.append(Row(method, kind, valid, distinct, best_of))
    return found


def method_table(results: Sequence[WideResult], tries: Sequence[int]) -> list[str]:
    """Return the speedups of each method as Markdown, and how many of its candidates differ."""
    lines = [
        "| tasks | method | right | distinct | " + " | ".join(f"best of {n}" for n in tries) + " |",
        "| --- | --- | --- | --- | " + " | ".join("---" for _ in tries) + " |",
    ]
    for row in rows(results):
        cells = " | ".join(row.spread(n) for n in tries)
        lines.append(f"| {row.kind} | {row.method} | {row.valid:.0%} | {row.distinct:.0%} | {cells} |")
    return lines


def write(run: TrainingFolder, claim: PolicyClaim, results: Sequence[WideResult]) -> list[str]:
    """Write table.md and curves.svg into the demo's folder, and return the tables."""
    settings = claim.settings
    tries = sorted({*settings.tries, settings.claimed, settings.equal})
    held = compared(claim, results)
    tables = [
        "## Held out",
        "",
        *claim_table(held),
        "",
        "## The built-in suite, of which nothing was claimed",
        "",
        *claim_table(compared(claim, results, "suite")),
        "",
        "## Speedups over eager",
        "",
        *method_table(results, tries),
    ]
    page = template("demo_wide.md").render(
        tables=tables,
        claim=claim,
        settings=settings,
        holds=bool(held) and all(each.verdict == "holds" for each in held),
        seconds=[seconds_of(folder) for folder in sorted(run.path.glob("seed-*/rl"))],
        starts=len(Training.read(run.path).starts),
        mark=run.manifest.machine,
        command=run.manifest.command,
    )
    write_atomically(run.path / "table.md", page)
    write_atomically(run.path / "curves.svg", picture(rows(results), tries, _KINDS, _COLOURS))
    return tables
