"""Sessions that nobody uses just now: the tasks used last stay up, as far as memory goes.

Starting a session takes a second or more, on a GPU tens of seconds (the oracle, its inputs, the baselines,
torch.compile among them). A search that waits for a language model comes back to its task while others have
been evaluated.
"""

import threading
from collections.abc import Callable

from kernelwright.kernelbench.errors import KernelwrightError
from kernelwright.kernelbench.evaluator.sandbox.process_tree import GONE_S
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.machine import available_bytes
from kernelwright.kernelbench.records import Task

_SHARE_OF_GPU = 0.5  # of its memory, that they may take all together; those who need it have them evicted


class SessionCache:
    """Shared by evaluators in several threads; a session is taken out to be used."""

    def __init__(self, most_bytes: int = 0) -> None:
        """`most_bytes`: of the machine's memory that they may take, all together."""
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        # The last used at the end, with the memory of the machine and of the GPU that each takes.
        self._sessions: list[tuple[TaskSession, int, int]] = []

    @property
    def has_room(self) -> bool:
        """True if it may hold any session at all."""
        return self._most_bytes > 0

    def take(self, task: Task, vary_weights: bool) -> TaskSession | None:
        """Return a session of this task that works, if there is one."""
        with self._lock:
            for number, (session, *_) in enumerate(self._sessions):
                if session.task == task and session.vary_weights == vary_weights:
                    del self._sessions[number]
                    break
            else:
                return None
        if session.alive:
            return session
        session.close()
        return None

    def put(self, session: TaskSession) -> None:
        """Park a session, or close it where there is no room; the least recently used ones are evicted.

        One that takes more of a GPU than its share stays alone: the next candidate is often of its task.
        """
        taken = self._taken_by(session)
        if taken is None or taken[0] > self._most_bytes:
            session.close()
            return
        most_on_device = int(_SHARE_OF_GPU * session.target.fingerprint.memory_bytes)
        making_way = []
        with self._lock:
            self._sessions.append((session, *taken))
            while len(self._sessions) > 1 and (
                sum(host for _, host, _ in self._sessions) > self._most_bytes
                or sum(device for *_, device in self._sessions) > most_on_device
            ):
                making_way.append(self._sessions.pop(0)[0])
        for old in making_way:
            old.close()

    def _taken_by(self, session: TaskSession) -> tuple[int, int] | None:
        """Memory of the machine and of the GPU that a session takes; None if it does not work any more."""
        if not self._most_bytes or not session.alive:
            return None
        try:
            return session.footprint.host_bytes(), session.footprint.device_bytes()
        except KernelwrightError:
            return None

    def evict(self, wanted_bytes: int) -> None:
        """Close those used longest ago until so much of the machine's memory is free, or none is left."""
        while available_bytes() < wanted_bytes and self.evict_oldest():
            pass

    def evict_on_device(self, lacking_bytes: Callable[[], int]) -> None:
        """Close those used longest ago until nothing of a GPU's memory is lacking, or none is left."""
        while lacking_bytes() > 0 and self.evict_oldest(GONE_S):
            pass

    def evict_oldest(self, within_s: float = 0.0) -> bool:
        """Close the one used longest ago; False if there is none. `within_s`: see `Worker.close`."""
        with self._lock:
            if not self._sessions:
                return False
            session, *_ = self._sessions.pop(0)
        session.close(within_s)
        return True

    def holds_any(self) -> bool:
        with self._lock:
            return bool(self._sessions)

    def holds(self, task: Task) -> bool:
        with self._lock:
            return any(session.task == task for session, *_ in self._sessions)

    def close(self) -> None:
        with self._lock:
            sessions, self._sessions = self._sessions, []
        for session, *_ in sessions:
            session.close()
