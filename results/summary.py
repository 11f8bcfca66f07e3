"""What a run achieved, in the numbers KernelBench defines (arXiv:2502.10517, section 3).

fast_p is the share of all tasks whose best candidate is correct and has a median speedup over eager
PyTorch larger than p. Means are over the correct ones, with their count. Tasks whose reference can be
beaten without doing its work are kept out of all of these and summarised apart.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from kernelbench.records import Interval, Record, Speedup, Verdict
from results.database import RunDatabase
from results.records import Attempt, LlmCall, TaskRun


class TaskSummary(Record):
    """One task with its best candidate; without a correct one, with the verdict on its last."""

    task: str
    level: int
    verdict: Verdict | None  # None: nothing was tried yet
    speedup: Speedup | None  # of the best candidate; None without a correct one
    own_kernel_share: float | None
    candidate_us: Interval | None
    candidate: str | None  # sha256 of the best candidate
    rounds: int
    stop_reason: str | None  # None: interrupted, or still running
    llm_calls: int
    usd: float | None  # None: the price of a call is not known
    seconds: float
    measures_nothing_why: str = ""


class PerBaseline(Record):
    eager: float | None
    compile: float | None
    fastest: float | None


class Counted(Record):
    """Over how many correct tasks each mean is taken."""

    eager: int
    compile: int
    fastest: int


class Aggregate(Record):
    """Shares are of `total`; all are None where there is nothing to count or average."""

    total: int
    correct: int
    fast_1: float | None
    fast_2: float | None
    geomean: PerBaseline
    mean: PerBaseline
    median: PerBaseline
    counted: Counted


class LevelAggregate(Aggregate):
    level: int


class Summary(Aggregate):
    """The content of summary.json. The inherited numbers are over `tasks`."""

    tasks: tuple[TaskSummary, ...]
    levels: tuple[LevelAggregate, ...]
    measures_nothing: tuple[TaskSummary, ...]
    measures_nothing_aggregate: Aggregate
    llm_calls: int
    usd: float | None  # of the whole run; None: the price of a call is not known
    seconds: float  # of evaluations and model calls, one after the other; not the wall clock of a run


def summarize(database: RunDatabase) -> Summary:
    """Raises StorageError when the database cannot be read."""
    tasks = database.tasks()
    attempts = {task.task.id: database.attempts(task.task.id) for task in tasks}
    return summary_of(tasks, attempts, database.llm_calls())


def summary_of(
    tasks: Sequence[TaskRun], attempts: Mapping[str, Sequence[Attempt]], calls: Sequence[LlmCall]
) -> Summary:
    """The summary of what was read from a run; `attempts` by task id."""
    rows = [
        (
            task.measures_nothing,
            _task_summary(
                task, attempts[task.task.id], [call for call in calls if call.task == task.task.id]
            ),
        )
        for task in tasks
    ]
    counted = tuple(row for apart, row in rows if not apart)
    apart = tuple(row for apart, row in rows if apart)
    levels = sorted({row.level for row in counted})
    seconds = [row.seconds for _, row in rows] + [call.seconds for call in calls if call.task is None]
    return Summary(
        **dict(aggregate(counted)),
        tasks=counted,
        levels=tuple(
            LevelAggregate(level=level, **dict(aggregate([row for row in counted if row.level == level])))
            for level in levels
        ),
        measures_nothing=apart,
        measures_nothing_aggregate=aggregate(apart),
        llm_calls=len(calls),
        usd=total_usd(calls),
        seconds=math.fsum(seconds),
    )


def best_attempt(attempts: Iterable[Attempt]) -> Attempt | None:
    """The attempt that stands for its task.

    That is a fresh measurement of the winner, or of a runner-up that might have been as fast, where there
    is one: the best of several noisy measurements is too good on average. Of these, or else of all that are
    correct, it is the one whose speedup over eager is largest at the lower bound of its interval, the
    earliest of equals; one that was not compared with eager only for want of any other. A candidate that was
    not correct the second time is out.
    """
    attempts = list(attempts)
    failed = {a.candidate.sha256 for a in attempts if a.confirms and a.evaluation.verdict != Verdict.correct}
    correct = [
        attempt
        for attempt in attempts
        if attempt.evaluation.verdict == Verdict.correct and attempt.candidate.sha256 not in failed
    ]
    confirmed = [attempt for attempt in correct if attempt.confirms]
    return max(confirmed or correct, key=_lower_bound, default=None)


def total_usd(calls: Sequence[LlmCall]) -> float | None:
    """0.0 without calls; None as soon as the price of one is not known."""
    prices = [call.usd for call in calls if call.usd is not None]
    return math.fsum(prices) if len(prices) == len(calls) else None


def _lower_bound(attempt: Attempt) -> float:
    speedup = attempt.evaluation.speedup
    return speedup.eager.low if speedup and speedup.eager else -math.inf


def _task_summary(task: TaskRun, attempts: Sequence[Attempt], calls: Sequence[LlmCall]) -> TaskSummary:
    best = best_attempt(attempts)
    shown = best or (attempts[-1] if attempts else None)
    evaluation = shown.evaluation if shown else None
    timing = best.evaluation.timing if best else None
    seconds = math.fsum(attempt.evaluation.stages.total_s for attempt in attempts)
    seconds += math.fsum(call.seconds for call in calls)
    return TaskSummary(
        task=task.task.id,
        level=task.task.level,
        verdict=evaluation.verdict if evaluation else None,
        speedup=best.evaluation.speedup if best else None,
        own_kernel_share=best.evaluation.own_kernel_share if best else None,
        candidate_us=timing.candidate_us if timing else None,
        candidate=best.candidate.sha256 if best else None,
        rounds=len({attempt.round for attempt in attempts if not attempt.confirms}),
        stop_reason=task.stop_reason,
        llm_calls=len(calls),
        usd=total_usd(calls),
        seconds=seconds,
        measures_nothing_why=task.measures_nothing_why,
    )


def aggregate(tasks: Sequence[TaskSummary]) -> Aggregate:
    correct = [task for task in tasks if task.verdict == Verdict.correct]
    eager = _medians(correct, "eager")
    compiled = _medians(correct, "compile")
    fastest = _medians(correct, "fastest")

    def per_baseline(average: Callable[[list[float]], float]) -> PerBaseline:
        return PerBaseline(
            eager=average(eager) if eager else None,
            compile=average(compiled) if compiled else None,
            fastest=average(fastest) if fastest else None,
        )

    def fast(p: float) -> float | None:
        return sum(median > p for median in eager) / len(tasks) if tasks else None

    return Aggregate(
        total=len(tasks),
        correct=len(correct),
        fast_1=fast(1.0),
        fast_2=fast(2.0),
        geomean=per_baseline(statistics.geometric_mean),
        mean=per_baseline(statistics.fmean),
        median=per_baseline(statistics.median),
        counted=Counted(eager=len(eager), compile=len(compiled), fastest=len(fastest)),
    )


def _medians(tasks: Iterable[TaskSummary], baseline: Literal["eager", "compile", "fastest"]) -> list[float]:
    """The median speedups of those tasks that were compared with this baseline."""
    intervals = [getattr(task.speedup, baseline) for task in tasks if task.speedup]
    return [interval.median for interval in intervals if interval is not None]
