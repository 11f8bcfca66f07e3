"""What the runs of `suite` and `upstream` come to beside speedups, and how long a first kernel takes."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kernelwright.agent.bench.covering import covered, means
from kernelwright.agent.bench.drawing import upstream_run
from kernelwright.agent.bench.publishing import log, publish, suite_run
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.coverage import Coverage
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import Effort, Measurement, Referee
from kernelwright.kernelbench.records import Fingerprint, Speedup, Task, Verdict
from kernelwright.profiling.records import Profile
from kernelwright.results.deliverable import submitted
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import Attempt
from kernelwright.results.summary import best_attempt

_BEHIND = 0.97
_NEAR = 0.95  # of the winner's speedup
_EVERY = 4  # task of the suite is one of those that first kernels are timed on


@dataclass(frozen=True)
class _Outcome:
    """A task's winner, with what was tried before it; where nothing was right, there is none."""

    winner: Attempt | None
    before: tuple[Attempt, ...]
    covered: Coverage | None = None

    @property
    def speedup(self) -> Speedup | None:
        return self.winner.evaluation.speedup if self.winner is not None else None

    @property
    def profile(self) -> Profile | None:
        return self.winner.profile if self.winner is not None else None

    @property
    def until_near(self) -> float:
        """Seconds of evaluations until one came to 95% of the winner's speedup in the search.

        Not of the winner's last measurement, which none of the others can be compared with: the search
        times less. What a task waits for others, and what its coder takes, is not counted.
        """
        assert self.winner is not None
        # The reference, which the best may give way to in the end, was no candidate of the search.
        named = self.winner.candidate.sha256
        won = next((a for a in self.before if a.candidate.sha256 == named), self.winner)
        seconds = 0.0
        for attempt in self.before:
            seconds += attempt.evaluation.stages.total_s
            if _rate(attempt) >= _NEAR * _rate(won):
                break
        return seconds


def _rate(attempt: Attempt) -> float:
    """How many times as fast as eager; 0 where that was not measured."""
    speedup = attempt.evaluation.speedup
    return speedup.eager.median if speedup is not None and speedup.eager is not None else 0.0


def goals() -> None:
    """From the runs that `suite` and `upstream` have left in `runs/`."""
    columns: dict[str, list[_Outcome]] = {}
    mark: Fingerprint | None = None
    runs = {f"level {level}": suite_run(level) for level in (1, 2, 3)}
    for name, path in {**runs, "upstream": upstream_run()}.items():
        if (path / "run.db").exists():
            with RunDatabase.open(path / "run.db", read_only=True) as database:
                columns[name] = _outcomes(database)
                mark = database.run.target.fingerprint
    assert mark is not None, "no run of `suite` is there"
    columns["suite"] = [outcome for name in runs for outcome in columns.get(name, ())]
    table = [(what, *(measure(c) for c in columns.values()), goal) for what, measure, goal in _MEASURES]
    publish("goals", "What the suites come to", ("", *columns, "goal"), table, mark)


def _outcomes(database: RunDatabase) -> list[_Outcome]:
    found, shares = [], covered(database)
    for entry in database.tasks():
        attempts = database.attempts(entry.task.id)
        confirmed = [attempt for attempt in attempts if attempt.confirms]
        if not entry.measures_nothing:
            winner = best_attempt(confirmed)
            before = tuple(a for a in attempts if not a.confirms)
            found.append(_Outcome(winner, before, shares.get(entry.task.id)))
    return found


def _geometric(values: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(values):.2f} (n={len(values)})" if values else "-"


def _of(found: Sequence[_Outcome], against: str) -> list[float]:
    intervals = [getattr(o.speedup, against) for o in found if o.speedup is not None]
    return [interval.median for interval in intervals if interval is not None]


def _not_by_products(found: Sequence[_Outcome]) -> list[_Outcome]:
    return [o for o in found if o.profile is not None and o.profile.bottleneck != "compute"]


def _correct(found: Sequence[_Outcome]) -> str:
    right = [o for o in found if o.winner is not None and o.winner.evaluation.verdict is Verdict.correct]
    return f"{len(right)} of {len(found)}"


def _fastest(found: Sequence[_Outcome]) -> str:
    own = [o for o in found if o.winner is not None and o.winner.candidate.language != "torch"]
    ahead = [o for o in own if any(rate > 1 for rate in _of([o], "fastest"))]
    return f"{len(ahead) / len(found):.0%}" if found else "-"


def _behind(found: Sequence[_Outcome]) -> str:
    return str(sum(rate < _BEHIND for rate in _of(found, "fastest")))


def _surely_behind(found: Sequence[_Outcome]) -> str:
    intervals = [o.speedup.fastest for o in found if o.speedup is not None]
    return str(sum(interval is not None and interval.high < _BEHIND for interval in intervals))


def _submitted(found: Sequence[_Outcome]) -> str:
    return str(sum(o.winner is not None and submitted(o.winner) is not None for o in found))


def _autotuned(found: Sequence[_Outcome]) -> str:
    timings = [o.winner.evaluation.timing for o in found if o.winner is not None]
    known = [timing for timing in timings if timing is not None]
    same = sum("max-autotune" in timing.same_code for timing in known)
    return f"{sum(timing.max_autotune_us is not None for timing in known)} + {same}"


def _distance(found: Sequence[_Outcome]) -> str:
    bound = [o.profile for o in found if o.profile is not None and o.profile.bottleneck == "memory"]
    lights = [profile.speed_of_light for profile in bound if profile.speed_of_light]
    return f"{statistics.median(1 / light for light in lights):.2f} (n={len(lights)})" if lights else "-"


def _until_near(found: Sequence[_Outcome]) -> str:
    seconds = [o.until_near for o in found if o.winner is not None]
    return f"{statistics.median(seconds):.1f} s" if seconds else "-"


def _share(found: Sequence[_Outcome]) -> str:
    shares = [o.winner.evaluation.own_kernel_share for o in found if o.winner is not None]
    known = [share for share in shares if share is not None]
    return f"{statistics.mean(known):.0%}" if known else "-"


def _covered(found: Sequence[_Outcome], number: int) -> str:
    known = [o.covered for o in found if o.covered is not None]
    return f"{means(known)[number]:.0%} (n={len(known)})" if known else "-"


_MEASURES = (
    ("correct", _correct, "all"),
    ("against eager", lambda found: _geometric(_of(found, "eager")), "1.3"),
    (
        "the same, but for what products and convolutions bound",
        lambda found: _geometric(_of(_not_by_products(found), "eager")),
        "2.0",
    ),
    ("against the fastest of the baselines", lambda found: _geometric(_of(found, "fastest")), "1.15"),
    ("tasks with max-autotune among them, or with the same code as compile", _autotuned, ""),
    (f"tasks whose best kernel is below {_BEHIND} of the fastest", _behind, ""),
    ("of these, by the whole interval", _surely_behind, ""),
    ("tasks for which the faster baseline is submitted, labelled", _submitted, ""),
    ("tasks in which own kernels are the fastest", _fastest, "60%"),
    ("time in own kernels, mean", _share, ""),
    ("bytes that own kernels read and write, mean", lambda found: _covered(found, 0), ""),
    ("FLOPs of own kernels, mean", lambda found: _covered(found, 1), ""),
    ("times the roofline's floor, median of what memory binds", _distance, "1.5"),
    ("time in evaluations until 95% of the final speedup, median", _until_near, ""),
)


def first() -> None:
    """How long it takes from a task to a kernel that is known to be right: every fourth task of the suite."""
    tasks = sources.resolve([], suite="builtin")[::_EVERY]
    found: list[tuple[float, Task]] = []
    brief = Effort(rounds=1, processes=1, most_processes=1, half_width=1.0)
    with TemporaryDirectory() as cache, Referee.start(cache=Path(cache)) as evaluator:
        coder = BuiltinCoder(lambda task: trace(evaluator.sessions.pool, task))
        evaluator.evaluate(
            tasks[0], coder.propose(tasks[0], [], None), Measurement(("eager",), brief)
        )  # starts workers
        for task in tasks[1:]:
            start = time.perf_counter()
            candidate = coder.propose(task, [], None)
            evaluation = evaluator.evaluate(task, candidate, Measurement(("eager",), brief))
            taken = time.perf_counter() - start - evaluation.stages.time_s
            if evaluation.verdict is Verdict.correct:
                found.append((taken, task))
            log(f"{task.id}: {evaluation.verdict} after {taken:.1f} s")
        seconds = [taken for taken, _ in found]
        slowest, at = max(found, key=lambda entry: entry[0])
        rows = [
            ("tasks", f"{len(found)} of {len(tasks) - 1}"),
            ("median", f"{statistics.median(seconds):.1f} s"),
            ("longest", f"{slowest:.1f} s, {at.id}"),
        ]
        publish(
            "first",
            "From a task to its first kernel that is right, nothing built before, without timing it",
            ("", ""),
            rows,
            evaluator.target.fingerprint,
        )
