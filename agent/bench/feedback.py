"""How many candidates searches need for what trying every schedule finds.

Every schedule is measured twice, in two runs. Searches see the first; what they choose is judged by the
second, which noise has not helped to choose, smoothed over knobs as the judge does it. They begin with what
the coder chooses by itself, and with random schedules, which leave more to be found.
"""

import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Annotated, Protocol

import pandas as pd
import typer

from kernelwright.agent.bench.publishing import log, publish
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.protocols import Attempt, searched
from kernelwright.agent.tracing import trace
from kernelwright.agent.tuner.advise import Ranking, RulesJudge, posterior, untried
from kernelwright.agent.tuner.gaussian_process import Beliefs, measured, timed
from kernelwright.agent.tuner.random_forest import Example, Surrogate, examples
from kernelwright.kernelbench.evaluator import EAGER, LocalEvaluator, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Advice, Evaluation, Fingerprint, Interval, Task
from kernelwright.results import formatting
from kernelwright.results.lessons.calibration import Calibration, Prediction, gain
from kernelwright.results.store.database import RunDatabase

TASKS = (
    "level1/horner_polynomial",
    "level1/cumsum_columns",
    "level1/min_columns",
    "level1/mean_middle",
    "level1/argmax_rows",
    "level1/conv1d_depthwise_causal",
    "level2/causal_softcap_softmax",
    "level2/bmm_softmax",
    "level2/conv_transpose2d_softmax_bias_sigmoid",
    "level2/conv1d_gated_residual",
)
HELD = frozenset({"fuse", "unroll"})  # else there are too many schedules to try them all
_SEEN, _JUDGED = (Path("runs") / f"bench-feedback-{number}" for number in (1, 2))
_NEAR = 0.95  # of the best schedule's speed
_DRAWS = 20  # of a random search
_STARTS = 5  # random schedules to begin with
_LONGEST = 40  # candidates of a search that goes on
_PATIENCE = 6  # moves in a row without a gain, after which a random search stops
_SPREAD = 0.1  # standard deviation of what a knob does, in what is taken for true


@dataclass(frozen=True)
class _Table:
    """Every schedule of a task: what searches see of it, and what it is `worth`, by candidate."""

    task: Task
    graph: Graph
    attempts: Mapping[str, Attempt]
    worth: Mapping[str, float]  # speedup over eager

    @property
    def first(self) -> Attempt:
        return next(iter(self.attempts.values()))

    @cached_property
    def starts(self) -> list[Attempt]:
        """Random schedules."""
        return Random(self.task.id).sample([*self.attempts.values()], _STARTS)

    @cached_property
    def best(self) -> str:
        return max(self.worth, key=lambda sha256: self.worth[sha256])

    def share(self, sha256: str) -> float:
        """Of the best schedule's speed."""
        return self.worth[sha256] / self.worth[self.best]

    def made(self, history: Sequence[Attempt], advice: Advice) -> Attempt | None:
        """What the coder makes of advice; None where that was wrong or not timed."""
        wanted = frozenset({**self.attempts[advice.about].candidate.schedule, **advice.schedule}.items())
        if wanted not in self._made:
            made = BuiltinCoder(lambda _: self.graph).propose(self.task, history, advice)
            self._made[wanted] = made.sha256
        found = self.attempts.get(self._made[wanted])
        return replace(found, advice=advice) if found is not None else None

    @cached_property
    def _made(self) -> dict[frozenset[tuple[str, str]], str]:
        """Candidates by the schedule that was asked for."""
        return {}


Found = list[tuple[Attempt, str]]  # attempts, each with what would be submitted after it


class _Strategy(Protocol):
    def search(self, table: _Table, start: Attempt, on: bool) -> Found:
        """What it tries. `on`: beyond where it would stop."""
        ...


@dataclass(frozen=True)
class _ByJudge:
    """The rules judge. `blind`: without profiles."""

    blind: bool = False
    rankings: Mapping[str, Ranking] = field(default_factory=dict)  # by task

    def search(self, table: _Table, start: Attempt, on: bool) -> Found:
        ranking = self.rankings.get(table.task.id)
        judge = RulesJudge(hold=HELD, ranking=ranking)
        if on:
            judge = RulesJudge(hold=HELD, ranking=ranking, worth_a_try=0.0, near_ceiling=math.inf)
        found: Found = []
        attempt: Attempt | None = self._seen(start)
        while attempt is not None and len(found) < _LONGEST:
            history = [*(each for each, _ in found), attempt]
            known = posterior(table.task, history, ranking=ranking)
            found.append((attempt, timed(history)[known.best].candidate.sha256))
            advice = judge.advise(table.task, history)
            wanted = advice is not None and "kernels" not in advice.schedule
            attempt = self._seen(table.made(history, advice)) if advice is not None and wanted else None
        return found

    def _seen(self, attempt: Attempt | None) -> Attempt | None:
        return replace(attempt, profile=None) if attempt is not None and self.blind else attempt


@dataclass(frozen=True)
class _ByChance:
    """Any move on the best, which is the fastest that was measured, until some have brought nothing."""

    draw: int

    def search(self, table: _Table, start: Attempt, on: bool) -> Found:
        chance = Random(f"{table.task.id} {self.draw}")
        history = [start]
        found = [(start, start.candidate.sha256)]
        while len(found) < _LONGEST:
            best = max(history, key=_speed)
            if not on and len(history) - history.index(best) > _PATIENCE:
                break
            tried = [dict(attempt.candidate.schedule) for attempt in history]
            moves = [m for m in untried(best.candidate, tried) if m.rule.knob not in HELD]
            if not moves:
                break
            move = chance.choice(moves)
            advice = Advice(
                bottleneck="", method="", plan="", predicted_gain=1.0, schedule={move.knob: move.new},
                about=best.candidate.sha256,
            )  # fmt: skip
            attempt = table.made(history, advice)
            if attempt is None:
                break
            history.append(attempt)
            found.append((attempt, max(history, key=_speed).candidate.sha256))
        return found


class _Start:
    """No search."""

    def search(self, table: _Table, start: Attempt, on: bool) -> Found:
        return [(start, start.candidate.sha256)]


def feedback(learn_from: Annotated[list[Path] | None, typer.Option()] = None) -> None:
    """How many candidates the builtin coder needs with profiles, without, at random, with the surrogate.

    Of ten tasks all schedules are measured twice, then searches look up what they ask for. The surrogate of
    each has seen the other nine, and the runs to learn from, but for these tasks.
    """
    others = [example for run in learn_from or () for example in _taught(run)]
    for run in (_SEEN, _JUDGED):
        _measure(run)
    with RunDatabase.open(_SEEN) as seen, RunDatabase.open(_JUDGED) as judged:
        mark = seen.run.target.fingerprint
        with Referee.start(cache=cache_folder()) as evaluator:
            tables = [
                _read(seen, judged, entry.task, trace(evaluator.sessions.pool, entry.task))
                for entry in seen.tasks()
            ]
            surrogates = {table.task.id: _surrogate(table, tables, others) for table in tables}
            strategies: dict[str, Sequence[_Strategy]] = {
                "rules, with the profile": [_ByJudge()],
                "rules, without it": [_ByJudge(blind=True)],
                "rules, with the surrogate": [_ByJudge(rankings=surrogates)],
                "random moves": [_ByChance(draw) for draw in range(_DRAWS)],
                "none": [_Start()],
            }
            submitted = {
                name: [
                    (table, search.search(table, table.first, False)[-1][1])
                    for table in tables
                    for search in searches
                ]
                for name, searches in strategies.items()
            }
            best = "the best of all schedules"
            submitted[best] = [(table, table.best) for table in tables]
            confirmed = _Confirmed(evaluator, judged)
            ends = {
                name: [confirmed.speedup(*each) for each in found]
                for name, found in submitted.items()
                if len(found) == len(tables)  # what chance finds is too much to measure again
            }
    begun = {
        "the coder's first": [(table, table.first) for table in tables],
        "one at random": [(table, start) for table in tables for start in table.starts],
    }
    rows = [
        (name, said, *_compared(starts, searches), _mean(ends.get(name)) if first else formatting.NOTHING)
        for first, (said, starts) in zip((True, False), begun.items(), strict=True)
        for name, searches in strategies.items()
    ]
    rows.append((best, *10 * (formatting.NOTHING,), _mean(ends[best])))
    header = (
        "search", "it begins with", "candidates until 95% of the best, median", f"not within {_LONGEST}",
        "share of the best with 5", "with 10", "with 20",
        "candidates when it stops, mean", "share of the best then, geomean", "least",
        "predicted gains, off by a factor", "over eager then, all effort, geomean",
    )  # fmt: skip
    publish("feedback", "Candidates until 95% of the best schedule", header, rows, mark)
    _publish_tasks(tables, surrogates, ends, mark)


def _measure(run: Path) -> None:
    """All schedules of the tasks, in a run that goes on where it was stopped."""
    tasks = [f"builtin:{name}" for name in TASKS]
    held = [word for knob in sorted(HELD) for word in ("--hold", knob)]
    asked = [*tasks, "--search", "exhaustive", "--rounds", "9999", *held, "--baseline", "eager"]
    wanted = ["--resume", str(run)] if (run / "run.db").exists() else [*asked, "--out", str(run)]
    subprocess.run([sys.executable, "-m", "kernelwright", "run", *wanted], check=True)


def _read(seen: RunDatabase, judged: RunDatabase, task: Task, graph: Graph) -> _Table:
    """Of the schedules that both runs have timed."""
    first, second = (
        {a.candidate.sha256: a for a in timed(searched(database.attempts(task.id)))}
        for database in (seen, judged)
    )
    both = {sha256: attempt for sha256, attempt in first.items() if sha256 in second}
    again = measured([second[sha256] for sha256 in both])
    believed = Beliefs(again, lambda knob, value: _SPREAD, lambda schedules: [0.0] * len(schedules))
    worth = map(math.exp, believed.speeds([each.schedule for each in again]))
    return _Table(task, graph, both, dict(zip(both, worth, strict=True)))


@dataclass(frozen=True)
class _Confirmed:
    """Measures with all effort what was chosen, and keeps it in the run."""

    evaluator: LocalEvaluator
    judged: RunDatabase

    def speedup(self, table: _Table, sha256: str) -> Interval:
        """Over eager."""
        known = {a.candidate.sha256: a.evaluation for a in self.judged.attempts(table.task.id) if a.confirms}
        if sha256 not in known:
            candidate = table.attempts[sha256].candidate
            known[sha256] = self.evaluator.evaluate(table.task, candidate, EAGER)
            self.judged.record_attempt(table.task.id, 0, candidate, None, known[sha256], None, confirms=True)
            log(f"{table.task.id}: {_over_eager(known[sha256]).median:.2f}")
        return _over_eager(known[sha256])


def _mean(speedups: Sequence[Interval] | None) -> str:
    if speedups is None:
        return formatting.NOTHING
    return formatting.ratio(statistics.geometric_mean(each.median for each in speedups))


def _over_eager(evaluation: Evaluation) -> Interval:
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    return evaluation.speedup.eager


def _speed(attempt: Attempt) -> float:
    return _over_eager(attempt.evaluation).median


def _surrogate(table: _Table, tables: Sequence[_Table], others: Sequence[Example]) -> Surrogate:
    """One that has not seen the task."""
    seen = [e for t in tables if t is not table for e in examples(t.task, [*t.attempts.values()])]
    return Surrogate([*seen, *others])


def _taught(run: Path) -> Iterator[Example]:
    """By the tasks of a run that are not among the ten."""
    with RunDatabase.open(run) as database:
        for task in (entry.task for entry in database.tasks()):
            if task.id.removeprefix("builtin:") not in TASKS:
                yield from examples(task, searched(database.attempts(task.id)))


def _compared(starts: Sequence[tuple[_Table, Attempt]], searches: Sequence[_Strategy]) -> tuple[str, ...]:
    """One row of the table: searches that go on, and ones that stop by themselves."""
    far = [(table, search.search(table, start, True)) for table, start in starts for search in searches]
    needed = [_until_near(table, found) for table, found in far]
    ends = [(table, search.search(table, start, False)) for table, start in starts for search in searches]
    shares = [table.share(found[-1][1]) for table, found in ends]
    within = (
        statistics.geometric_mean(table.share(found[:count][-1][1]) for table, found in far)
        for count in (5, 10, 20)
    )
    return (
        f"{statistics.median(needed):g}",
        f"{sum(count > _LONGEST for count in needed)} of {len(needed)}",
        *(f"{share:.3f}" for share in within),
        f"{statistics.mean(len(found) for _, found in ends):.1f}",
        f"{statistics.geometric_mean(shares):.3f}",
        f"{min(shares):.3f}",
        formatting.ratio(_predictions(far).off_by),
    )


def _until_near(table: _Table, found: Sequence[tuple[Attempt, str]]) -> int:
    """Candidates until what would be submitted is near the best; where it never is, one more than all."""
    near = (n for n, (_, chosen) in enumerate(found, 1) if table.share(chosen) >= _NEAR)
    return next(near, _LONGEST + 1)


def _predictions(searches: Sequence[tuple[_Table, Sequence[tuple[Attempt, str]]]]) -> Calibration:
    """What was predicted of each candidate over the one it was made from, and what it came to."""
    found = []
    for table, attempts in searches:
        for attempt, _ in attempts:
            if attempt.advice is not None and attempt.advice.predicted_gain != 1.0:
                before = table.attempts[attempt.advice.about]
                came = gain(before.evaluation, attempt.evaluation)
                found.append(Prediction(attempt.advice.predicted_gain, came))
    return Calibration(tuple(found))


def _publish_tasks(
    tables: Sequence[_Table],
    surrogates: Mapping[str, Surrogate],
    ends: Mapping[str, Sequence[Interval]],
    mark: Fingerprint,
) -> None:
    """Record of a task: its schedules, what can be known of them, and what searches submit."""
    rows = [
        (
            table.task.id.removeprefix("builtin:"),
            str(len(table.attempts)),
            f"{_repeatability(table):.2f}",
            f"{_rank_correlation(table, surrogates[table.task.id]):.2f}",
            *(f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]" for found in of_task),
        )
        for table, of_task in zip(tables, zip(*ends.values(), strict=True), strict=True)
    ]
    header = (
        "task", "schedules", "rank correlation of what is seen and what it is worth", "of the surrogate",
        *(f"{name}: over eager, all effort" for name in ends),
    )  # fmt: skip
    publish("feedback-tasks", "Schedules of ten tasks, all measured twice", header, rows, mark)


def _repeatability(table: _Table) -> float:
    """Spearman's, of what searches see and what it is worth."""
    return _spearman([_speed(a) for a in table.attempts.values()], [*table.worth.values()])


def _rank_correlation(table: _Table, surrogate: Surrogate) -> float:
    """Spearman's, of guessed gains and what they are worth, over all schedules of a task it has not seen."""
    every = [*table.attempts.values()]
    schedules = [attempt.candidate.schedule for attempt in every]
    return _spearman(surrogate.gains(table.task, every, schedules[0], schedules), [*table.worth.values()])


def _spearman(some: Sequence[float], others: Sequence[float]) -> float:
    return float(pd.Series(some).rank().corr(pd.Series(others).rank()))
