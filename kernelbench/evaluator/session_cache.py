"""Sessions that nobody uses just now: the tasks used last stay up, as far as memory goes.

Starting a session takes a second or more (the oracle, its inputs, the eager baseline). A search that waits
for a language model comes back to its task while others have been evaluated.
"""

import threading

from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.machine import available_bytes
from kernelwright.kernelbench.records import Task


class SessionCache:
    """Shared by evaluators in several threads; a session is taken out to be used."""

    def __init__(self, most_bytes: int = 0) -> None:
        """`most_bytes`: of memory that they may take, all together."""
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._sessions: list[tuple[TaskSession, int]] = []  # with what each takes, the last used at the end

    @property
    def has_room(self) -> bool:
        """True if it may hold any session at all."""
        return self._most_bytes > 0

    def take(self, task: Task, vary_weights: bool) -> TaskSession | None:
        """Return a session of this task that works, if there is one."""
        with self._lock:
            for number, (session, _) in enumerate(self._sessions):
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
        """Park a session, or close it where there is no room; the least recently used ones are evicted."""
        taken = session.memory_bytes() if self._most_bytes and session.alive else None
        if taken is None or taken > self._most_bytes:
            session.close()
            return
        making_way = []
        with self._lock:
            self._sessions.append((session, taken))
            while sum(size for _, size in self._sessions) > self._most_bytes:
                making_way.append(self._sessions.pop(0)[0])
        for old in making_way:
            old.close()

    def evict(self, wanted_bytes: int) -> None:
        """Close those used longest ago until so much of the machine's memory is free, or none is left."""
        while available_bytes() < wanted_bytes:
            with self._lock:
                if not self._sessions:
                    return
                session, _ = self._sessions.pop(0)
            session.close()

    def holds(self, task: Task) -> bool:
        with self._lock:
            return any(session.task == task for session, _ in self._sessions)

    def close(self) -> None:
        with self._lock:
            sessions, self._sessions = self._sessions, []
        for session, _ in sessions:
            session.close()
