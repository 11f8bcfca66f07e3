"""One device of an evaluation pool: its evaluators, one for each slot, and the sessions parked on it."""

import threading

from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.records import Evaluation, Task, Verdict

_MOST_FAILED = 2  # jobs in a row that failed here and that another device did, until it is left out


class DeviceSlots:
    def __init__(self, evaluator: LocalEvaluator, slots: int, parked_bytes: int) -> None:
        """`parked_bytes`: of the machine's memory, that sessions may take which nobody uses."""
        self.evaluator = evaluator
        self.name = evaluator.name
        self.cache = SessionCache(parked_bytes)
        self.evaluators = [evaluator.sibling(self.cache) for _ in range(slots)]
        self.fault: str | None = None  # why it is left out
        self._failed = 0
        self._lock = threading.Lock()

    def holds(self, task: Task) -> bool:
        """Tell whether a session of `task` is up here."""
        return any(evaluator.holds(task) for evaluator in self.evaluators)

    def failure(self, evaluator: LocalEvaluator, came: object) -> str | None:
        """Return the fault of the device that shows in what came of a job, a result or an error.

        None where it works, as far as is known.
        """
        failed = isinstance(came, Evaluation) and came.verdict is Verdict.runtime_error
        if failed or isinstance(came, InfrastructureError | TaskError):
            return evaluator.fault()
        return None

    def done(self) -> None:
        """Note that a job was done here."""
        with self._lock:
            self._failed = 0

    def done_elsewhere(self) -> str | None:
        """Note that a job which failed here was done by another device; return why to leave this one out."""
        with self._lock:
            self._failed += 1
            if self._failed < _MOST_FAILED or self.fault is not None:
                return None
            return f"{self._failed} jobs in a row failed on it that other devices did"

    def close(self) -> None:
        """Close parked sessions."""
        with self.evaluator.computing():
            self.cache.close()
