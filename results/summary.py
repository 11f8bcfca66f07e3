"""Summary of a run in the numbers of KernelBench (arXiv:2502.10517, section 3), counted more strictly.

fast_p is the share of all tasks whose best candidate is correct, is faster than p times eager PyTorch by its
whole interval (KernelBench: by the mean), and spends at least 5% of its time in kernels of its own. If a
baseline is faster than the best candidate, the reference is submitted, which counts as 1.0 against
everything. Means are over the correct tasks, with their count. Tasks whose reference can be beaten without
doing its work are kept out of all of these and summarised apart. Parts that a task was cut into are not
counted: what they gain is in their whole's speedup.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, get_args

from pydantic import Field

from kernelwright.kernelbench.records import LEAST_OWN, Interval, PartOf, Record, SizeResult, Speedup, Verdict
from kernelwright.kernelbench.speed_of_light import BEYOND, EAGER, score_of
from kernelwright.results.deliverable import submitted
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall, RecordedAttempt, TaskRun

ONE = Interval(median=1.0, low=1.0, high=1.0)
Baseline = Literal["eager", "compile", "fastest"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
Outcome = Literal["faster", "even", "reference", "not_own", "not_timed", "not_correct", "not_tried"]
_IN_WORDS: dict[Outcome, str] = {
    "faster": "faster than eager",
    "even": "not distinguishable",
    "reference": "submitted as the reference",
    "not_own": "faster without known kernels of its own",
    "not_timed": "not timed",
    "not_correct": "not correct",
    "not_tried": "not tried",
}


class TaskSummary(Record):
    """One task with its best candidate; without a correct one, with the verdict on its last."""

    task: str
    level: int
    verdict: Verdict | None  # None: nothing was tried yet
    speedup: Speedup | None  # of the best candidate; None without a correct one
    own_kernel_share: float | None
    candidate_us: Interval | None
    floor_us: float | None = None  # least time by the measured ceilings
    speed_of_light_score: float | None = None  # of the best candidate
    candidate: str | None  # sha256 of the best candidate
    rounds: int
    stop_reason: str | None  # None: interrupted, or still running
    llm_calls: int
    usd: float | None  # None: the price of a call is not known
    seconds: float
    measures_nothing_why: str = ""
    submitted: str = ""  # the baseline that is faster than the best candidate: the reference, run so
    outcome: Outcome = "not_tried"
    part: PartOf | None = None
    # Of a task of several: of the best candidate, else of the last.
    sizes: tuple[SizeResult, ...] = Field(default=(), exclude_if=lambda results: not results)

    @property
    def label(self) -> str:
        """The id; of a part, which stands under its whole, its name in that and its share of the time."""
        if self.part is None:
            return self.task
        places = f" in {len(self.part.places)} places" if len(self.part.places) > 1 else ""
        return f"└ {self.task.removeprefix(self.part.whole)}, {self.part.share:.0%}{places}"

    def counted(self, baseline: Baseline) -> Interval | None:
        """Return the speedup that counts for the deliverable: 1 if that is the reference."""
        measured: Interval | None = getattr(self.speedup, baseline) if self.speedup is not None else None
        return ONE if self.submitted and measured is not None else measured

    @property
    def counted_score(self) -> float | None:
        """The score that counts for the deliverable: eager's if that is the reference."""
        known = self.speed_of_light_score
        return EAGER if self.submitted and known is not None else known

    @property
    def below_floor(self) -> bool:
        """True if the best candidate is faster than the floor by more than noise."""
        if self.floor_us is None or self.candidate_us is None:
            return False
        return self.floor_us > BEYOND * self.candidate_us.median


class PerBaseline(Record):
    eager: float | None
    compile: float | None
    fastest: float | None


class Counted(Record):
    """Number of correct tasks behind each mean."""

    eager: int
    compile: int
    fastest: int
    score: int


class Aggregate(Record):
    """Aggregate over tasks. Shares are of `total`; they are None if there is nothing to count or average."""

    total: int
    correct: int
    outcomes: dict[Outcome, int]  # how many tasks ended so; those that none did are left out
    fast_1: float | None
    fast_2: float | None
    geomean: PerBaseline
    mean: PerBaseline
    median: PerBaseline
    speed_of_light_score: float | None  # mean
    counted: Counted

    @property
    def headline(self) -> str:
        """Outcomes in words: `5 of 8 faster than eager, 3 not distinguishable`."""
        first, *others = _IN_WORDS
        said = [f"{self.outcomes.get(first, 0)} of {self.total} {_IN_WORDS[first]}"]
        said += [f"{self.outcomes[name]} {_IN_WORDS[name]}" for name in others if name in self.outcomes]
        return ", ".join(said)


class LevelAggregate(Aggregate):
    level: int


class Summary(Aggregate):
    """The content of summary.json. The inherited numbers are over `tasks`."""

    tasks: tuple[TaskSummary, ...]
    parts: tuple[TaskSummary, ...] = ()
    levels: tuple[LevelAggregate, ...]
    measures_nothing: tuple[TaskSummary, ...]
    measures_nothing_aggregate: Aggregate
    llm_calls: int
    usd: float | None  # of the whole run; None: the price of a call is not known
    seconds: float  # of evaluations, profiles and model calls, added up; not the wall clock of a run

    @property
    def everything(self) -> tuple[TaskSummary, ...]:
        """All tasks and parts."""
        return (*self.tasks, *self.measures_nothing, *self.parts)

    def with_parts(self, tasks: Iterable[TaskSummary]) -> list[TaskSummary]:
        """Return tasks, each with its parts behind it."""
        found: list[TaskSummary] = []
        for task in tasks:
            found.append(task)
            found += [each for each in self.parts if each.part is not None and each.part.whole == task.task]
        return found


def summarize(database: RunDatabase) -> Summary:
    """Summarize a run. Raises StorageError if the database cannot be read."""
    tasks = database.tasks()
    attempts = {task.task.id: database.attempts(task.task.id) for task in tasks}
    return summary_of(tasks, attempts, database.llm_calls())


def summary_of(
    tasks: Sequence[TaskRun], attempts: Mapping[str, Sequence[RecordedAttempt]], calls: Sequence[LlmCall]
) -> Summary:
    """Return the summary of the records of a run; `attempts` by task id."""
    rows = [
        (
            task,
            _task_summary(
                task, attempts[task.task.id], [call for call in calls if call.task == task.task.id]
            ),
        )
        for task in tasks
    ]
    wholes = [(task, row) for task, row in rows if task.task.part is None]
    counted = tuple(row for task, row in wholes if not task.measures_nothing)
    apart = tuple(row for task, row in wholes if task.measures_nothing)
    levels = sorted({row.level for row in counted})
    seconds = [row.seconds for _, row in rows] + [call.seconds for call in calls if call.task is None]
    return Summary(
        **dict(aggregate(counted)),
        tasks=counted,
        parts=tuple(row for _, row in rows if row.part is not None),
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


def best_attempt(attempts: Iterable[RecordedAttempt]) -> RecordedAttempt | None:
    """Return the attempt that represents its task.

    That is a fresh measurement of the winner, or of a runner-up that might have been as fast, if there is
    one: the best of several noisy measurements is too good on average. Of these, or else of all that are
    correct, it is the one whose speedup over eager is largest at the lower bound of its interval, the
    earliest of equals; one that was not compared with eager only if there is no other. A candidate that was
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
    """Return the cost of calls: 0.0 without any; None if the price of one is unknown."""
    prices = [call.usd for call in calls if call.usd is not None]
    return math.fsum(prices) if len(prices) == len(calls) else None


def _lower_bound(attempt: RecordedAttempt) -> float:
    speedup = attempt.evaluation.speedup
    return speedup.eager.low if speedup and speedup.eager else -math.inf


def _task_summary(
    task: TaskRun, attempts: Sequence[RecordedAttempt], calls: Sequence[LlmCall]
) -> TaskSummary:
    best = best_attempt(attempts)
    reference = submitted(best) if best is not None else None
    shown = best or (attempts[-1] if attempts else None)
    evaluation = shown.evaluation if shown else None
    timing = best.evaluation.timing if best else None
    seconds = math.fsum(attempt.evaluation.stages.total_s for attempt in attempts)
    seconds += math.fsum(attempt.profile.seconds for attempt in attempts if attempt.profile is not None)
    seconds += math.fsum(call.seconds for call in calls)
    return TaskSummary(
        task=task.task.id,
        level=task.task.level,
        verdict=evaluation.verdict if evaluation else None,
        speedup=best.evaluation.speedup if best else None,
        own_kernel_share=best.evaluation.own_kernel_share if best else None,
        candidate_us=timing.candidate_us if timing else None,
        floor_us=timing.floor_us if timing else None,
        speed_of_light_score=score_of(best.evaluation) if best else None,
        candidate=best.candidate.sha256 if best else None,
        rounds=len({a.round for a in attempts if not a.confirms and a.candidate.origin == "round"}),
        stop_reason=task.stop_reason,
        llm_calls=len(calls),
        usd=total_usd(calls),
        seconds=seconds,
        measures_nothing_why=task.measures_nothing_why,
        submitted=reference.baseline if reference is not None else "",
        outcome=_outcome(best, reference is not None) if attempts else "not_tried",
        part=task.task.part,
        sizes=evaluation.sizes if evaluation else (),
    )


def _outcome(best: RecordedAttempt | None, reference: bool) -> Outcome:
    if best is None:
        return "not_correct"
    speedup, own = best.evaluation.speedup, best.evaluation.own_kernel_share
    if speedup is None or speedup.eager is None:
        return "not_timed"
    if reference:
        return "reference"
    if speedup.eager.low <= 1:
        return "even"
    return "faster" if own is not None and own >= LEAST_OWN else "not_own"


def aggregate(tasks: Sequence[TaskSummary]) -> Aggregate:
    correct = [task for task in tasks if task.verdict == Verdict.correct]
    eager = _medians(correct, "eager")
    compiled = _medians(correct, "compile")
    fastest = _medians(correct, "fastest")
    scores = [task.counted_score for task in correct if task.counted_score is not None]

    def per_baseline(average: Callable[[list[float]], float]) -> PerBaseline:
        return PerBaseline(
            eager=average(eager) if eager else None,
            compile=average(compiled) if compiled else None,
            fastest=average(fastest) if fastest else None,
        )

    def fast(p: float) -> float | None:
        counted = [task.counted("eager") for task in tasks if task.outcome == "faster"]
        return sum(each is not None and each.low > p for each in counted) / len(tasks) if tasks else None

    outcomes = [task.outcome for task in tasks]
    return Aggregate(
        total=len(tasks),
        correct=len(correct),
        outcomes={name: outcomes.count(name) for name in _IN_WORDS if name in outcomes},
        fast_1=fast(1.0),
        fast_2=fast(2.0),
        geomean=per_baseline(statistics.geometric_mean),
        mean=per_baseline(statistics.fmean),
        median=per_baseline(statistics.median),
        speed_of_light_score=statistics.fmean(scores) if scores else None,
        counted=Counted(eager=len(eager), compile=len(compiled), fastest=len(fastest), score=len(scores)),
    )


def _medians(tasks: Iterable[TaskSummary], baseline: Baseline) -> list[float]:
    """Return the median speedups that count, of the tasks that were compared with this baseline."""
    intervals = [task.counted(baseline) for task in tasks]
    return [interval.median for interval in intervals if interval is not None]
