"""Candidates of recorded runs as samples for `profiling.selection`, and the resulting selection in words."""

from collections.abc import Iterable

from rich.table import Table

from kernelwright.kernelbench.errors import UsageError
from kernelwright.profiling.catalogue import CATALOGUE
from kernelwright.profiling.selection import (
    FEWEST_CANDIDATES,
    FEWEST_TASKS,
    MetricSample,
    RankedMetric,
    Selection,
    kind_of,
    select,
    values_of,
)
from kernelwright.results.lessons.calibration import over_eager
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import RecordedAttempt

_SIGNIFICANT = 0.05
COLUMNS = ("metric", "kept", "|rho|", "least rho", "most", "tasks", "candidates", "p-value", "meaning")


def selected(runs: Iterable[RunDatabase], most: int) -> Selection:
    """Select metrics over all correct candidates that have a profile.

    Raises UsageError if there are too few.
    """
    samples: list[MetricSample] = []
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
            "invalid runs: some are on GPUs and some on CPUs, which have different metrics",
            "give runs of one kind",
        )
    found = select(samples, kinds.pop(), chips, most)
    if len(found.candidates) < FEWEST_TASKS:
        short = "".join(f"; {name}: {count}" for name, count in found.left_out.items())
        raise UsageError(
            f"{len(found.candidates)} tasks have {FEWEST_CANDIDATES} correct candidates profiled{short}",
            f"give runs with at least {FEWEST_TASKS} such tasks, or with more --rounds",
        )
    return found


def _samples(group: str, attempts: Iterable[RecordedAttempt]) -> Iterable[MetricSample]:
    """Return a sample per candidate, from its last measurement; times are relative to eager's."""
    found = {}
    for attempt in attempts:
        speed = over_eager(attempt.evaluation)
        if speed is not None and attempt.profile is not None:
            found[attempt.candidate.sha256] = MetricSample(group, 1 / speed, values_of(attempt.profile))
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


def _kept(each: RankedMetric, selection: Selection) -> str:
    if each.name in selection.kept:
        return "yes"
    if CATALOGUE[each.name].of_time:
        return "measures time"
    if len(each.rhos) < FEWEST_TASKS:
        return "too few tasks"
    return "weaker" if each.agrees else "signs differ"


def caveats(selection: Selection) -> list[str]:
    """Return the caveats about a selection, a line each."""
    lines = []
    if selection.left_out:
        names = ", ".join(f"{name} ({count})" for name, count in selection.left_out.items())
        lines.append(f"Left out, with fewer than {FEWEST_CANDIDATES} correct candidates profiled: {names}.")
    if not selection.kept:
        lines.append("No metric correlates with the time alike in all tasks, so none is kept.")
    doubtful = [e.name for e in selection.ranked if e.name in selection.kept and e.chance > _SIGNIFICANT]
    if doubtful:
        lines.append(f"Not significant (p > 0.05 against shuffled times): {', '.join(doubtful)}.")
    return lines
