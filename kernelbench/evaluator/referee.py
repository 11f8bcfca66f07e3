"""The referee: verifies and times candidates on one target, each in a `Trial`."""

from collections.abc import Collection
from pathlib import Path

from kernelwright.kernelbench.evaluator import faults
from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.processes.worker_handle import NotStopped
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits, Measurement, Protocol
from kernelwright.kernelbench.evaluator.refusal import NO_MEMORY, NoDeviceMemory
from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.evaluator.sessions import Sessions
from kernelwright.kernelbench.evaluator.trial import Trial
from kernelwright.kernelbench.machine import physical_threads
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict

_ATTEMPTS = 3  # at an evaluation in which a worker does not stop
_HAS_ALLOCATED = (Verdict.build_error, Verdict.runtime_error)


class Referee(LocalEvaluator):
    def __init__(self, sessions: Sessions, owns_pool: bool = False) -> None:
        """`owns_pool`: closing it ends the process that its workers are forked from."""
        super().__init__(sessions)
        self._owns_pool = owns_pool

    @classmethod
    def start(
        cls,
        *,
        cache: Path,
        protocol: Protocol | None = None,
        limits: Limits | None = None,
        threads: int | None = None,
        without: Collection[str] = (),
        device: str = "cpu",
        chip: str | None = None,
        timing_lock: TimingLock | None = None,
        cpus: Collection[int] = (),
    ) -> "Referee":
        """Start the process that workers are forked from, and a referee with it.

        `cache`: folder of builds and measured ceilings. `threads` of a kernel, by default one a core.
        `without`: layers of the sandbox to leave off; see `WorkerPool`. `device`: "cpu" or "cuda:0". `chip`:
        see `Sessions`. `timing_lock`: another referee's, whose timings this one must not disturb. `cpus`:
        that workers may run on, all by default.

        Raises MissingPrerequisite and StorageError.
        """
        limits = limits or Limits()
        pool = WorkerPool(
            threads=threads or physical_threads(),
            cache=cache,
            limits=limits,
            without=without,
            device=device,
            timing_lock=timing_lock,
            cpus=cpus,
        )
        return cls(Sessions(pool, protocol or Protocol(), limits, chip=chip), owns_pool=True)

    def sibling(self, cache: SessionCache | None = None) -> "Referee":
        return Referee(self.sessions.sibling(cache))

    def at_one_size(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation:
        stopped_in_vain = 0
        with self.sessions.computing(), faults.of_the_machine():
            while True:
                try:
                    found = Trial(self.sessions, task, candidate, measurement).evaluation()
                except NoDeviceMemory:  # that sessions may have which nobody uses
                    if not self.sessions.evict():
                        raise
                except NotStopped as failure:  # a matter of what else the machine does, as a rule
                    stopped_in_vain += 1
                    if stopped_in_vain < _ATTEMPTS:
                        continue
                    if failure.role in sandbox.TRUSTED:
                        raise
                    # Its fault, if what is trusted can be stopped at the same time.
                    self.sessions.open(task).oracle.stop_again()
                    return self.untried(task, candidate, Verdict.runtime_error, failure.message)
                else:
                    short = found.verdict in _HAS_ALLOCATED and NO_MEMORY.search(found.reason)
                    if not short or self.sessions.pool.device == "cpu" or not self.sessions.evict():
                        return found
                    while self.sessions.evict():  # all of them: it is not known how much it takes
                        pass

    def close(self) -> None:
        super().close()
        if self._owns_pool:
            self.sessions.pool.close()
