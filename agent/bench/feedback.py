"""How many candidates searches need for what trying every schedule finds."""

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import pandas as pd

from agent import rules
from agent.bench.publishing import log, publish
from agent.builtin.coder import BuiltinCoder
from agent.builtin.graph import Graph
from agent.protocols import Attempt, Judge, searched
from agent.rules import PATIENCE, RulesJudge
from agent.surrogate import Surrogate, examples
from agent.tracing import trace
from kernelbench.evaluator import Evaluator
from kernelbench.machine import cache_folder
from kernelbench.records import Advice, Evaluation, Fingerprint, Task, Verdict
from profiling.ladder import QUICK, profile
from profiling.rung import Subject
from results import records, wording
from results.calibration import Calibration, Prediction
from results.database import RunDatabase

TASKS = (
    "level1/gelu",
    "level1/softmax",
    "level1/layer_norm",
    "level1/l2_normalize",
    "level1/softmax_channels",
    "level1/sum_columns",
    "level1/cumsum",
    "level1/mse_loss",
    "level2/swiglu_gate",
    "level2/cross_entropy_z_loss",
)
HELD = ("fuse", "unroll")  # else there are too many schedules to try them all
_RUN = Path("runs") / "bench-feedback"
_NEAR = 0.95  # of the best schedule's speedup
_DRAWS = 20  # of a search by chance
_ENDLESS = 10_000  # moves


@dataclass(frozen=True)
class _Table:
    """Every schedule of a task, measured. `worth`: speedup over eager, by candidate."""

    task: Task
    graph: Graph
    first: Attempt
    attempts: Mapping[str, Attempt]
    worth: Mapping[str, float]

    @property
    def best(self) -> float:
        return max(self.worth.values())

    def search(self, judge: Judge, blind: bool = False) -> list[float]:
        """What the best was worth after each candidate that `judge` wanted; `blind`: it sees no profiles."""
        coder = BuiltinCoder(lambda _: self.graph)
        history, found = [self.first], list[float]()
        while True:
            seen = [replace(a, profile=None) for a in history] if blind else history
            chosen = min(history, key=_time)
            found.append(self.worth[chosen.candidate.sha256])
            advice = judge.advise(self.task, seen)
            if advice is None or "kernels" in advice.schedule:  # which would hand in the reference
                return found
            proposed = coder.propose(self.task, history, advice).sha256
            if proposed not in self.attempts:  # it was wrong, or not timed
                return found
            history.append(replace(self.attempts[proposed], advice=advice))

    def until_near(self, found: Sequence[float]) -> int:
        """Candidates until one was near the best; all there are where none was."""
        near = (n for n, worth in enumerate(found, 1) if worth >= _NEAR * self.best)
        return next(near, len(self.worth))


@dataclass(frozen=True)
class _Chance:
    """Moves on the best schedule, as the rules judge has them, by chance."""

    draw: int
    patience: int

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        best = min(history, key=_time)
        if rules.stuck(history, self.patience):
            return None
        tried = [dict(attempt.candidate.schedule) for attempt in history]
        moves = [m for m in rules.untried(best.candidate.schedule, tried) if m.rule.knob not in HELD]
        if not moves:
            return None
        move = Random(f"{task.id} {self.draw} {len(history)}").choice(moves)
        return Advice(bottleneck="", method="", plan="", predicted_gain=1.0, schedule={move.knob: move.new})


def _time(attempt: Attempt) -> float:
    assert attempt.evaluation.timing is not None
    return attempt.evaluation.timing.candidate_us.median


def feedback() -> None:
    """How many candidates the builtin coder needs with profiles, without, by chance, with the surrogate.

    Of ten tasks all schedules are measured, then searches look up what they ask for.
    """
    _measure()
    with RunDatabase.open(_RUN) as database:
        _measure_again(database)
        mark = database.run.target.fingerprint
        with Evaluator(cache=cache_folder()) as evaluator:
            tables = [
                _read(database, entry.task, trace(evaluator.pool, entry.task)) for entry in database.tasks()
            ]
    surrogates = {table.task.id: _surrogate(table, tables) for table in tables}
    held = frozenset(HELD)

    def by_rules(table: _Table, patience: int, blind: bool) -> list[list[float]]:
        return [table.search(RulesJudge(hold=held, patience=patience), blind)]

    def by_chance(table: _Table, patience: int) -> list[list[float]]:
        return [table.search(_Chance(draw, patience)) for draw in range(_DRAWS)]

    def by_surrogate(table: _Table, patience: int) -> list[list[float]]:
        judge = RulesJudge(hold=held, patience=patience, ranking=surrogates[table.task.id])
        return [table.search(judge)]

    strategies: dict[str, Callable[[_Table, int], list[list[float]]]] = {
        "rules, with the profile": partial(by_rules, blind=False),
        "rules, without it": partial(by_rules, blind=True),
        "moves by chance": by_chance,
        "the surrogate's order, of moves to any value": by_surrogate,
    }
    rows = [(name, *_compared(tables, search)) for name, search in strategies.items()]
    header = (
        "search", "candidates until 95% of the best, median", "mean", "never",
        "candidates when it stops, mean", "share of the best then, geomean", "least",
    )  # fmt: skip
    publish("feedback", "Candidates until 95% of the best schedule", header, rows, mark)
    _publish_tasks(tables, surrogates, strategies, mark)


def _measure() -> None:
    """All schedules of the tasks, in a run that goes on where it was stopped."""
    tasks = [f"builtin:{name}" for name in TASKS]
    held = [word for knob in HELD for word in ("--hold", knob)]
    asked = [*tasks, "--search", "exhaustive", "--rounds", "9999", *held, "--baseline", "eager"]
    wanted = ["--resume", str(_RUN)] if (_RUN / "run.db").exists() else [*asked, "--out", str(_RUN)]
    subprocess.run([sys.executable, "-m", "kernelwright", "run", *wanted], check=True)


def _measure_again(database: RunDatabase) -> None:
    """The first and the best schedules of each task, with all effort; each is recorded as it is found out."""
    with Evaluator(cache=cache_folder()) as evaluator:
        for entry in database.tasks():
            attempts = database.attempts(entry.task.id)
            known = {a.candidate.sha256: _worth(a.evaluation) for a in attempts if a.confirms}
            correct = [a for a in attempts if not a.confirms and a.evaluation.verdict is Verdict.correct]
            unique: dict[str, records.Attempt] = {}
            for attempt in correct:
                unique.setdefault(attempt.candidate.sha256, attempt)
            once = {sha256: _worth(attempt.evaluation) for sha256, attempt in unique.items()}
            for sha256 in _to_be_sure_of(once, known):
                attempt = unique[sha256]
                evaluation = evaluator.evaluate(entry.task, attempt.candidate, ("eager",))
                subject = Subject(evaluator, entry.task, attempt.candidate, evaluation)
                database.record_attempt(
                    entry.task.id,
                    attempt.round,
                    attempt.candidate,
                    None,
                    evaluation,
                    profile(subject, QUICK),
                    confirms=True,
                )
                known[sha256] = _worth(evaluation)
                log(f"{entry.task.id}: {_worth(attempt.evaluation):.3f}, again {_worth(evaluation):.3f}")


def _to_be_sure_of(once: Mapping[str, float], known: Mapping[str, float]) -> Iterator[str]:
    """The first candidate, and whichever looks best, until that is one that is `known`, and not from `once`.

    The best of many noisy numbers is too good.
    """
    if (first := next(iter(once))) not in known:
        yield first
    while (best := max(once, key=lambda sha256: known.get(sha256, once[sha256]))) not in known:
        yield best


def _worth(evaluation: Evaluation) -> float:
    """Its speedup over eager; 0 where it has none."""
    eager = evaluation.speedup.eager if evaluation.speedup is not None else None
    return eager.median if eager is not None and evaluation.verdict is Verdict.correct else 0.0


def _read(database: RunDatabase, task: Task, graph: Graph) -> _Table:
    attempts: dict[str, Attempt] = {}
    worth: dict[str, float] = {}
    for found in database.attempts(task.id):
        sha256 = found.candidate.sha256
        if found.confirms:
            if sha256 in attempts:  # not the reference, where that was handed in
                worth[sha256] = _worth(found.evaluation)
        elif found.evaluation.timing is not None and sha256 not in attempts:
            [attempts[sha256]] = searched([found])
            worth[sha256] = _worth(found.evaluation)
    return _Table(task, graph, next(iter(attempts.values())), attempts, worth)


def _surrogate(table: _Table, tables: Sequence[_Table]) -> Surrogate:
    """One that has not seen the task."""
    others = (other for other in tables if other is not table)
    return Surrogate([e for other in others for e in examples(other.task, [*other.attempts.values()])])


def _compared(
    tables: Sequence[_Table], search: Callable[[_Table, int], list[list[float]]]
) -> tuple[str, ...]:
    """One row of the table: a search that goes on until nothing is left, and one that stops by itself."""
    searched_through = [(table, found) for table in tables for found in search(table, _ENDLESS)]
    needed = [table.until_near(found) for table, found in searched_through]
    endless = [max(found) < _NEAR * table.best for table, found in searched_through]
    ends = [(len(found), found[-1] / table.best) for table in tables for found in search(table, PATIENCE)]
    spent, shares = zip(*ends, strict=True)
    return (
        f"{statistics.median(needed):g}",
        f"{statistics.mean(needed):.1f}",
        f"{sum(endless)} of {len(endless)}",
        f"{statistics.mean(spent):.1f}",
        f"{statistics.geometric_mean(shares):.3f}",
        f"{min(shares):.3f}",
    )


def _publish_tasks(
    tables: Sequence[_Table],
    surrogates: Mapping[str, Surrogate],
    strategies: Mapping[str, Callable[[_Table, int], list[list[float]]]],
    mark: Fingerprint,
) -> None:
    """Of each task: its schedules, what searches need, and what was guessed of it."""
    rows = []
    for table in tables:
        timed = [*table.attempts.values()]
        needed = (
            statistics.mean(table.until_near(found) for found in search(table, _ENDLESS))
            for search in strategies.values()
        )
        rows.append(
            (
                table.task.id.removeprefix("builtin:"),
                str(len(timed)),
                wording.ratio(table.worth[table.first.candidate.sha256]),
                wording.ratio(table.best),
                *(f"{number:g}" for number in needed),
                f"{_rank_correlation(table, surrogates[table.task.id]):.2f}",
                wording.ratio(_off_by(table)),
            )
        )
    header = (
        "task", "schedules", "first", "best", *strategies, "rank correlation of the surrogate",
        "rules' gains, off by a factor",
    )  # fmt: skip
    publish("feedback-tasks", "Schedules of ten tasks, all measured", header, rows, mark)


def _rank_correlation(table: _Table, surrogate: Surrogate) -> float:
    """Spearman's, of guessed and measured times of all schedules of a task that it has not seen."""
    timed = [*table.attempts.values()]
    gains = surrogate.gains(
        table.task, timed, timed[0].candidate.schedule, [a.candidate.schedule for a in timed]
    )
    guessed, measured = pd.Series(gains).rank(), pd.Series([1 / _time(a) for a in timed]).rank()
    return float(guessed.corr(measured))


def _off_by(table: _Table) -> float | None:
    """The factor, at the median, between what rules hope for of moves on the first schedule and what came."""
    schedule, bottleneck = table.first.candidate.schedule, rules.binding(table.first.profile)
    by_schedule = {frozenset(a.candidate.schedule.items()): a for a in table.attempts.values()}
    found = []
    for move in rules.untried(schedule, [dict(schedule)]):
        made = by_schedule.get(frozenset({**schedule, move.knob: move.new}.items()))
        if made is not None:
            found.append(Prediction(move.gain(bottleneck, {}), _time(table.first) / _time(made)))
    return Calibration(tuple(found)).off_by
