"""Every schedule of ten tasks, each measured in two runs: what searches see, and what they are judged by.

Searches see the first run. What they choose is judged by the second, which noise has not helped to choose,
smoothed over knobs as the rules judge does it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random

from benchmarks.runs import make_run
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.protocols import Attempt, searched
from kernelwright.agent.tuner.gaussian_process import Posterior, measured, timed
from kernelwright.kernelbench.records import Advice, Evaluation, Interval, Task
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
HELD = frozenset({"fuse", "unroll"})  # with them there are too many schedules to try every one
SEEN, JUDGED = (Path("runs") / f"bench-feedback-{number}" for number in (1, 2))
_STARTS = 5  # random schedules that searches begin with
_SPREAD = 0.1  # standard deviation of log speedup that a knob is assumed to cause


@dataclass(frozen=True)
class ScheduleTable:
    """Every schedule of a task: its attempts as searches see them, and its true speedups, by candidate."""

    task: Task
    graph: Graph
    attempts: Mapping[str, Attempt]
    speedups: Mapping[str, float]  # over eager, from the second run

    @property
    def first(self) -> Attempt:
        """The schedule that the coder chooses by itself."""
        return next(iter(self.attempts.values()))

    @cached_property
    def random_starts(self) -> list[Attempt]:
        return Random(self.task.id).sample([*self.attempts.values()], _STARTS)

    @cached_property
    def best(self) -> str:
        return max(self.speedups, key=lambda sha256: self.speedups[sha256])

    def share_of_best(self, sha256: str) -> float:
        """Speedup of a candidate as a share of the best schedule's."""
        return self.speedups[sha256] / self.speedups[self.best]

    def follow(self, history: Sequence[Attempt], advice: Advice) -> Attempt | None:
        """Look up the candidate that the coder writes on advice; None if it was wrong or not timed."""
        schedule = {**self.attempts[advice.about].candidate.schedule, **advice.schedule}
        wanted = frozenset(schedule.items())
        if wanted not in self._written:
            candidate = BuiltinCoder(lambda _: self.graph).propose(self.task, history, advice)
            self._written[wanted] = candidate.sha256
        attempt = self.attempts.get(self._written[wanted])
        return replace(attempt, advice=advice) if attempt is not None else None

    @cached_property
    def _written(self) -> dict[frozenset[tuple[str, str]], str]:
        """Candidates by the schedule that advice asked for."""
        return {}


def measure_all(run: Path) -> None:
    """Measure all schedules of the tasks, in a run that is resumed where it was stopped."""
    tasks = [f"builtin:{name}" for name in TASKS]
    held = [word for knob in sorted(HELD) for word in ("--hold", knob)]
    make_run(
        [*tasks, "--search", "exhaustive", "--rounds", "9999", *held, "--baseline", "eager"],
        run,
    )


def read_table(seen: RunDatabase, judged: RunDatabase, task: Task, graph: Graph) -> ScheduleTable:
    """Return the schedules of a task that both runs have timed."""
    first, second = (
        {a.candidate.sha256: a for a in timed(searched(database.attempts(task.id)))}
        for database in (seen, judged)
    )
    both = {sha256: attempt for sha256, attempt in first.items() if sha256 in second}
    again = measured([second[sha256] for sha256 in both])
    posterior = Posterior(again, lambda knob: _SPREAD)
    speedups = map(math.exp, posterior.speeds([each.schedule for each in again]))
    return ScheduleTable(task, graph, both, dict(zip(both, speedups, strict=True)))


def over_eager(evaluation: Evaluation) -> Interval:
    """Measured speedup over eager."""
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    return evaluation.speedup.eager


def seen_speedup(attempt: Attempt) -> float:
    """Median speedup over eager, as searches see it."""
    return over_eager(attempt.evaluation).median
