"""Summary of the runs that `suite` and `upstream` have left in runs/: speedups, coverage, time taken.

    python -m benchmarks summary

Nothing is measured; each task is traced again for its coverage. Machine: any CPU. Time: 3 minutes
(estimate). Writes cpu/summary.md.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.coverage import covered, mean_shares
from benchmarks.publishing import publish
from benchmarks.runs import suite_run, upstream_run
from kernelwright.agent.builtin.coverage import Coverage
from kernelwright.kernelbench.records import Fingerprint, Interval, Speedup, Verdict
from kernelwright.profiling.records import Profile
from kernelwright.results.deliverable import submitted
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import RecordedAttempt
from kernelwright.results.summary import best_attempt

_BEHIND = 0.97  # of the fastest baseline
_NEAR = 0.95  # of the winner's speedup
_NOTHING = "-"


@dataclass(frozen=True)
class _Outcome:
    """The winner of a task, None if nothing was correct, and what was tried before its last measurement."""

    winner: RecordedAttempt | None
    searched: tuple[RecordedAttempt, ...]
    coverage: Coverage | None = None

    @property
    def speedup(self) -> Speedup | None:
        return self.winner.evaluation.speedup if self.winner is not None else None

    @property
    def profile(self) -> Profile | None:
        return self.winner.profile if self.winner is not None else None

    @property
    def seconds_until_near(self) -> float:
        """Seconds of evaluations until one reached 95% of the winner's speedup in the search.

        The winner's last measurement is not compared with: the search times less, and its speedups go
        together with each other only. Waiting for other tasks and for the coder is not counted.
        """
        assert self.winner is not None
        # The reference, which a task may fall back to in the end, was no candidate of the search.
        sha256 = self.winner.candidate.sha256
        won = next((a for a in self.searched if a.candidate.sha256 == sha256), self.winner)
        seconds = 0.0
        for attempt in self.searched:
            seconds += attempt.evaluation.stages.total_s
            if _over_eager(attempt) >= _NEAR * _over_eager(won):
                break
        return seconds


def _over_eager(attempt: RecordedAttempt) -> float:
    """Median speedup over eager; 0.0 if unmeasured."""
    speedup = attempt.evaluation.speedup
    return speedup.eager.median if speedup is not None and speedup.eager is not None else 0.0


def run() -> None:
    columns: dict[str, list[_Outcome]] = {}
    machine: Fingerprint | None = None
    levels = {f"level {level}": suite_run(level) for level in (1, 2, 3)}
    for name, path in {**levels, "upstream": upstream_run()}.items():
        if (path / "run.db").exists():
            with RunDatabase.open(path / "run.db", read_only=True) as database:
                columns[name] = _outcomes(database)
                machine = database.run.target.fingerprint
    if machine is None:
        raise SystemExit("error: no run of the suite is in runs/ — make one: python -m benchmarks suite")
    columns["suite"] = [outcome for level in levels for outcome in columns.get(level, ())]
    rows = [(label, *(measure(outcomes) for outcomes in columns.values())) for label, measure in _MEASURES]
    publish("summary", "Summary of the suites", ("", *columns), rows, machine)


def _outcomes(database: RunDatabase) -> list[_Outcome]:
    outcomes, coverages = [], covered(database)
    for entry in database.tasks():
        if entry.measures_nothing:
            continue
        attempts = database.attempts(entry.task.id)
        winner = best_attempt([attempt for attempt in attempts if attempt.confirms])
        searched = tuple(attempt for attempt in attempts if not attempt.confirms)
        outcomes.append(_Outcome(winner, searched, coverages.get(entry.task.id)))
    return outcomes


# The measures: each is a cell of the table, of the outcomes of one column.


def _correct(outcomes: Sequence[_Outcome]) -> str:
    correct = [o for o in outcomes if o.winner and o.winner.evaluation.verdict is Verdict.correct]
    return f"{len(correct)} of {len(outcomes)}"


def _eager(outcomes: Sequence[_Outcome]) -> str:
    return _geometric_mean([o.speedup.eager for o in outcomes if o.speedup])


def _eager_not_compute_bound(outcomes: Sequence[_Outcome]) -> str:
    return _eager([o for o in outcomes if o.profile and o.profile.bottleneck != "compute"])


def _fastest(outcomes: Sequence[_Outcome]) -> str:
    return _geometric_mean(_over_fastest(outcomes))


def _autotuned(outcomes: Sequence[_Outcome]) -> str:
    timings = [o.winner.evaluation.timing for o in outcomes if o.winner]
    known = [timing for timing in timings if timing is not None]
    same = sum("max-autotune" in timing.same_code for timing in known)
    return f"{sum(timing.max_autotune_us is not None for timing in known)} + {same}"


def _behind(outcomes: Sequence[_Outcome]) -> str:
    return str(sum(fastest.median < _BEHIND for fastest in _over_fastest(outcomes)))


def _surely_behind(outcomes: Sequence[_Outcome]) -> str:
    return str(sum(fastest.high < _BEHIND for fastest in _over_fastest(outcomes)))


def _baselines_submitted(outcomes: Sequence[_Outcome]) -> str:
    return str(sum(o.winner is not None and submitted(o.winner) is not None for o in outcomes))


def _own_fastest(outcomes: Sequence[_Outcome]) -> str:
    own = [o for o in outcomes if o.winner and o.winner.candidate.language != "torch"]
    ahead = sum(fastest.median > 1 for fastest in _over_fastest(own))
    return f"{ahead / len(outcomes):.0%}" if outcomes else _NOTHING


def _own_share(outcomes: Sequence[_Outcome]) -> str:
    shares = [o.winner.evaluation.own_kernel_share for o in outcomes if o.winner]
    known = [share for share in shares if share is not None]
    return f"{statistics.mean(known):.0%}" if known else _NOTHING


def _bytes_covered(outcomes: Sequence[_Outcome]) -> str:
    return _covered(outcomes, 0)


def _flops_covered(outcomes: Sequence[_Outcome]) -> str:
    return _covered(outcomes, 1)


def _covered(outcomes: Sequence[_Outcome], which: int) -> str:
    known = [o.coverage for o in outcomes if o.coverage is not None]
    return f"{mean_shares(known)[which]:.0%} (n={len(known)})" if known else _NOTHING


def _times_of_floor(outcomes: Sequence[_Outcome]) -> str:
    bound = [o.profile for o in outcomes if o.profile and o.profile.bottleneck == "memory"]
    shares = [profile.speed_of_light for profile in bound if profile.speed_of_light]
    return f"{statistics.median(1 / share for share in shares):.2f} (n={len(shares)})" if shares else _NOTHING


def _until_near(outcomes: Sequence[_Outcome]) -> str:
    seconds = [o.seconds_until_near for o in outcomes if o.winner]
    return f"{statistics.median(seconds):.1f} s" if seconds else _NOTHING


def _over_fastest(outcomes: Sequence[_Outcome]) -> list[Interval]:
    """Measured speedups over the fastest baseline."""
    speedups = [o.speedup.fastest for o in outcomes if o.speedup]
    return [fastest for fastest in speedups if fastest is not None]


def _geometric_mean(speedups: Sequence[Interval | None]) -> str:
    known = [speedup.median for speedup in speedups if speedup is not None]
    return f"{statistics.geometric_mean(known):.2f} (n={len(known)})" if known else _NOTHING


_MEASURES: tuple[tuple[str, Callable[[Sequence[_Outcome]], str]], ...] = (
    ("correct", _correct),
    ("against eager", _eager),
    ("the same, but for what products and convolutions bound", _eager_not_compute_bound),
    ("against the fastest of the baselines", _fastest),
    ("tasks with max-autotune among them, or with the same code as compile", _autotuned),
    (f"tasks whose best kernel is below {_BEHIND} of the fastest", _behind),
    ("of these, by the whole interval", _surely_behind),
    ("tasks for which the faster baseline is submitted, labelled", _baselines_submitted),
    ("tasks in which own kernels are the fastest", _own_fastest),
    ("time in own kernels, mean", _own_share),
    ("bytes that own kernels read and write, mean", _bytes_covered),
    ("FLOPs of own kernels, mean", _flops_covered),
    ("times the roofline's floor, median of what memory binds", _times_of_floor),
    ("time in evaluations until 95% of the final speedup, median", _until_near),
)
