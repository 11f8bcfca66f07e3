"""Memory of a session: what it has, and what its workers may still take, on the machine and on a GPU."""

from collections.abc import Callable, Sequence

from kernelwright.kernelbench.evaluator.correctness.oracle_client import OracleClient
from kernelwright.kernelbench.evaluator.memory.budget import PROCESS_BYTES, DeviceBudget, HostBudget
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker

_HOST_PROCESS_BYTES = 1 << 29  # of the machine, that a worker takes beside its outputs


class Footprint:
    """Memory of one session, by its own budget."""

    def __init__(
        self,
        oracle: OracleClient,
        budget: HostBudget | DeviceBudget,
        baselines: Callable[[], Sequence[Worker]],
    ) -> None:
        """`baselines`: returns those that are up."""
        self._oracle, self._budget, self._baselines = oracle, budget, baselines

    def host_bytes(self) -> int:
        """Memory of the machine that its oracle and its baselines have."""
        return self._oracle.memory_bytes + self._baselines_bytes()

    def wanted_bytes(self, workers: int) -> int:
        """Memory of the machine that so many workers, baselines among them, may take beyond theirs."""
        return workers * (self._budget.heap_bytes + _HOST_PROCESS_BYTES) - self._baselines_bytes()

    def _baselines_bytes(self) -> int:
        return sum(worker.memory_bytes for worker in self._baselines())

    def device_bytes(self) -> int:
        """Memory of the GPU that its oracle and its baselines have; 0 on the CPU."""
        if isinstance(self._budget, HostBudget):
            return 0
        return self._oracle.device_bytes() + (1 + len(self._baselines())) * PROCESS_BYTES

    def lacking_device_bytes(self, workers: int) -> int:
        """Memory of the GPU that it needs for so many workers, baselines among them, and that is not free.

        0 on the CPU, and where there is enough.
        """
        if isinstance(self._budget, HostBudget):
            return 0
        # What are up stay up, and there is a candidate beside them.
        needed = self._budget.bytes_for(max(workers, 1 + len(self._baselines())))
        free = self._oracle.free_device_bytes()  # first: it frees what the oracle has without need
        return max(0, needed - self.device_bytes() - free)
