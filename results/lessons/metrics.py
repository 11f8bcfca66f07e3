"""The candidates of recorded runs, as `profiling.selection` looks at them, and what it found in words."""

from collections.abc import Iterable

from rich.table import Table

from kernelwright.kernelbench.errors import UsageError
from kernelwright.profiling.catalogue import CATALOGUE
from kernelwright.profiling.selection import (
    FEWEST_CANDIDATES,
    FEWEST_TASKS,
    Ranked,
    Sample,
    Selection,
    kind_of,
    select,
    values_of,
)
from kernelwright.results.lessons.calibration import over_eager
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import Attempt

_USUAL_CHANCE = 0.05
COLUMNS = ("metric", "kept", "|rho|", "least rho", "most", "tasks", "candidates", "by chance", "meaning")


def selected(runs: Iterable[RunDatabase], most: int) -> Selection:
    """Over all their correct candidates that have a profile. Raises UsageError where those are too few."""
    samples: list[Sample] = []
    kinds, chips = set(), set()
    for database in runs:
        target = database.run.target
        mark = target.fingerprint
        kinds.add(kind_of(target.device))
        chips.add(mark.chip)
        for entry in database.tasks():
            group = f"{entry.task.id}, {entry.task.effective_precision}, {mark.chip}, {mark.threads} threads"
            samples += _samples(group, database.attempts(entry.task.id))
    if len(kinds) != 1:
        raise UsageError(
            "these runs are of GPUs and of CPUs, which have other metrics", "give those of one kind"
        )
    found = select(samples, kinds.pop(), chips, most)
    if len(found.candidates) < FEWEST_TASKS:
        short = "".join(f"; {name}: {count}" for name, count in found.left_out.items())
        raise UsageError(
            f"{len(found.candidates)} tasks have {FEWEST_CANDIDATES} correct candidates profiled{short}",
            f"give runs with {FEWEST_TASKS} such tasks or more, of more --rounds",
        )
    return found


def _samples(group: str, attempts: Iterable[Attempt]) -> Iterable[Sample]:
    """One of each candidate, as it was measured last; times are in units of eager's, timed beside it."""
    found = {}
    for attempt in attempts:
        speed = over_eager(attempt.evaluation)
        if speed is not None and attempt.profile is not None:
            found[attempt.candidate.sha256] = Sample(group, 1 / speed, values_of(attempt.profile))
    return found.values()


def table(selection: Selection) -> Table:
    made = Table(box=None, header_style="bold")
    for column in COLUMNS:
        made.add_column(column, justify="left" if column in ("metric", "kept", "meaning") else "right")
    for each in selection.ranked:
        rhos = sorted(each.rhos.values())
        made.add_row(
            each.name,
            _kept(each, selection),
            f"{each.strength:.2f}",
            f"{rhos[0]:+.2f}",
            f"{rhos[-1]:+.2f}",
            str(len(rhos)),
            str(each.candidates),
            f"{each.chance:.2g}",
            CATALOGUE[each.name].meaning,
            style=None if each.name in selection.kept else "dim",
        )
    return made


def _kept(each: Ranked, selection: Selection) -> str:
    if each.name in selection.kept:
        return "yes"
    if CATALOGUE[each.name].of_time:
        return "is the time"
    if len(each.rhos) < FEWEST_TASKS:
        return "too few tasks"
    return "weaker" if each.agrees else "signs differ"


def caveats(selection: Selection) -> list[str]:
    """What to think of it, a line each."""
    lines = []
    if selection.left_out:
        names = ", ".join(f"{name} ({count})" for name, count in selection.left_out.items())
        lines.append(f"Left out, with fewer than {FEWEST_CANDIDATES} correct candidates profiled: {names}.")
    if not selection.kept:
        lines.append("No metric goes with the time alike in all tasks. Those that were tried are left out.")
    doubtful = [e.name for e in selection.ranked if e.name in selection.kept and e.chance > _USUAL_CHANCE]
    if doubtful:
        lines.append(f"Shuffled times show as much in more than one case of twenty: {', '.join(doubtful)}.")
    return lines
