"""Candidates that searches need for what trying every schedule finds: with profiles, without, at random.

    python -m benchmarks feedback

All schedules of ten tasks are measured twice, then searches look up what they ask for (`schedules`). They
begin with the coder's own choice, and with random schedules, which leave more to be found. Machine: CPU,
quiet. Time: an hour (estimate); runs in runs/ are not measured again. Writes cpu/feedback.md and
cpu/feedback-tasks.md.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from benchmarks.agent.schedules import (
    JUDGED,
    SEEN,
    ScheduleTable,
    measure_all,
    over_eager,
    read_table,
    seen_speedup,
)
from benchmarks.agent.strategies import LONGEST, FromJudge, NoSearch, RandomMoves, Strategy, Trace
from benchmarks.publishing import log, publish
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench.evaluator import EAGER, LocalEvaluator, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Fingerprint, Interval
from kernelwright.results import formatting
from kernelwright.results.lessons.calibration import Calibration, Prediction, gain
from kernelwright.results.store.database import RunDatabase

_NEAR = 0.95  # of the best schedule's speedup
_RANDOM_SEARCHES = 20
_BEST = "the best of all schedules"
_HEADER = (
    "search", "it begins with", "candidates until 95% of the best, median", f"not within {LONGEST}",
    "share of the best with 5", "with 10", "with 20",
    "candidates when it stops, mean", "share of the best then, geomean", "least",
    "predicted gains, off by a factor", "over eager then, all effort, geomean",
)  # fmt: skip


def run() -> None:
    for folder in (SEEN, JUDGED):
        measure_all(folder)
    with RunDatabase.open(SEEN) as seen, RunDatabase.open(JUDGED) as judged:
        machine = seen.run.target.fingerprint
        with Referee.start(cache=cache_folder()) as evaluator:
            tables = [
                read_table(seen, judged, entry.task, trace(evaluator.sessions.pool, entry.task))
                for entry in seen.tasks()
            ]
            strategies: dict[str, Sequence[Strategy]] = {
                "rules, with the profile": [FromJudge()],
                "rules, without it": [FromJudge(blind=True)],
                "random moves": [RandomMoves(seed) for seed in range(_RANDOM_SEARCHES)],
                "none": [NoSearch()],
            }
            confirmed = _confirmed(strategies, tables, _Confirming(evaluator, judged))
    starts = {
        "the coder's first": [(table, table.first) for table in tables],
        "one at random": [(table, start) for table in tables for start in table.random_starts],
    }
    rows = [
        (name, begun, *_compared(starts[begun], searches), _mean(confirmed.get(name) if first else None))
        for first, begun in zip((True, False), starts, strict=True)
        for name, searches in strategies.items()
    ]
    rows.append((_BEST, *10 * (formatting.NOTHING,), _mean(confirmed[_BEST])))
    publish("feedback", "Candidates until 95% of the best schedule", _HEADER, rows, machine)
    _publish_tasks(tables, confirmed, machine)


@dataclass(frozen=True)
class _Confirming:
    """Measures candidates with full effort, and keeps that in the run."""

    evaluator: LocalEvaluator
    judged: RunDatabase

    def speedup(self, table: ScheduleTable, sha256: str) -> Interval:
        """Speedup over eager."""
        known = {a.candidate.sha256: a.evaluation for a in self.judged.attempts(table.task.id) if a.confirms}
        if sha256 not in known:
            candidate = table.attempts[sha256].candidate
            known[sha256] = self.evaluator.evaluate(table.task, candidate, EAGER)
            self.judged.record_attempt(table.task.id, 0, candidate, None, known[sha256], None, confirms=True)
            log(f"{table.task.id}: {over_eager(known[sha256]).median:.2f}")
        return over_eager(known[sha256])


def _confirmed(
    strategies: Mapping[str, Sequence[Strategy]], tables: Sequence[ScheduleTable], confirming: _Confirming
) -> dict[str, list[Interval]]:
    """Speedups of what each search submits, by task, and of the best schedules.

    Random searches are too many to measure again.
    """
    confirmed = {
        name: [
            confirming.speedup(table, searches[0].search(table, table.first, False)[-1][1])
            for table in tables
        ]
        for name, searches in strategies.items()
        if len(searches) == 1
    }
    confirmed[_BEST] = [confirming.speedup(table, table.best) for table in tables]
    return confirmed


def _mean(speedups: Sequence[Interval] | None) -> str:
    if speedups is None:
        return formatting.NOTHING
    return formatting.ratio(statistics.geometric_mean(each.median for each in speedups))


def _compared(
    starts: Sequence[tuple[ScheduleTable, Attempt]], searches: Sequence[Strategy]
) -> tuple[str, ...]:
    """Cells of a row: of searches that never stop, and of ones that stop by themselves."""
    far = [(table, search.search(table, start, True)) for table, start in starts for search in searches]
    needed = [_until_near(table, found) for table, found in far]
    ends = [(table, search.search(table, start, False)) for table, start in starts for search in searches]
    shares = [table.share_of_best(found[-1][1]) for table, found in ends]
    within = (
        statistics.geometric_mean(table.share_of_best(found[:count][-1][1]) for table, found in far)
        for count in (5, 10, 20)
    )
    return (
        f"{statistics.median(needed):g}",
        f"{sum(count > LONGEST for count in needed)} of {len(needed)}",
        *(f"{share:.3f}" for share in within),
        f"{statistics.mean(len(found) for _, found in ends):.1f}",
        f"{statistics.geometric_mean(shares):.3f}",
        f"{min(shares):.3f}",
        formatting.ratio(_calibration(far).off_by),
    )


def _until_near(table: ScheduleTable, found: Trace) -> int:
    """Candidates until the one to be submitted is near the best; LONGEST + 1 if it never is."""
    near = (n for n, (_, chosen) in enumerate(found, 1) if table.share_of_best(chosen) >= _NEAR)
    return next(near, LONGEST + 1)


def _calibration(searches: Sequence[tuple[ScheduleTable, Trace]]) -> Calibration:
    """Predicted and measured gains of candidates over the ones that they were made from."""
    predictions = []
    for table, attempts in searches:
        for attempt, _ in attempts:
            if attempt.advice is not None and attempt.advice.predicted_gain != 1.0:
                before = table.attempts[attempt.advice.about]
                measured_gain = gain(before.evaluation, attempt.evaluation)
                predictions.append(Prediction(attempt.advice.predicted_gain, measured_gain))
    return Calibration(tuple(predictions))


def _publish_tasks(
    tables: Sequence[ScheduleTable], confirmed: Mapping[str, Sequence[Interval]], machine: Fingerprint
) -> None:
    """Write the table of the tasks: their schedules, how well these can be told apart, what was submitted."""
    rows = [
        (
            table.task.id.removeprefix("builtin:"),
            str(len(table.attempts)),
            f"{_repeatability(table):.2f}",
            *(f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]" for found in of_task),
        )
        for table, of_task in zip(tables, zip(*confirmed.values(), strict=True), strict=True)
    ]
    header = (
        "task", "schedules", "rank correlation of what is seen and what it is worth",
        *(f"{name}: over eager, all effort" for name in confirmed),
    )  # fmt: skip
    publish("feedback-tasks", "Schedules of ten tasks, all measured twice", header, rows, machine)


def _repeatability(table: ScheduleTable) -> float:
    """Spearman correlation of the speedups of the two runs."""
    seen = pd.Series([seen_speedup(attempt) for attempt in table.attempts.values()])
    return float(seen.rank().corr(pd.Series([*table.speedups.values()]).rank()))
