"""The evaluator and the profilers of a node of a Ray cluster, as its actor starts them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kernelwright.agent.profiled import Profilers, ProfilingPool
from kernelwright.kernelbench.evaluator import Limits, LocalEvaluator, Protocol
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.kernelbench.without_gpu import start_evaluator
from kernelwright.profiling.records import Profile


@dataclass(frozen=True)
class ProfilingSlot:
    """`SlotPool` of `kernelbench.remote.cluster.slot`."""

    evaluator: LocalEvaluator
    pool: ProfilingPool

    def profile(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, known: str | None, closely: bool
    ) -> str | None:
        """Return what profilers read of a candidate, and `known`, its profile so far, as JSON."""
        before = Profile.model_validate_json(known) if known is not None else None
        found = self.pool.profile(task, candidate, evaluation, before, closely=closely)
        return found.model_dump_json() if found is not None else None


@contextmanager
def started_slot(
    *, device: str, chips: Sequence[str], protocol: Protocol, limits: Limits, profilers: Profilers
) -> Iterator[ProfilingSlot]:
    """Start the evaluator of this machine's `device`. Raises as `start_evaluator` does."""
    with (
        start_evaluator(
            cache=cache_folder(), protocol=protocol, limits=limits, devices=(device,), chips=chips
        ) as evaluator,
        ProfilingPool(evaluator, profilers=profilers) as pool,
    ):
        yield ProfilingSlot(evaluator, pool)
