"""Timing lock: one evaluation slot is timed at a time, while all other slots and their workers are stopped.

A slot is a thread of the referee that carries out evaluations. While a slot holds the lock
(`TimingLock.exclusive`), the others wait wherever they next wait for a worker, and their workers are stopped.
Time limits do not count that: `TimingLock.clock` stops for a slot that waits. Two slots, of which A times and
B has a build of at most 180 s under way in process 4711:

    slot A                               slot B
                                         shared(), then waiting_for_worker(4711): its builder compiles
    exclusive(): no slot is busy, so     (SIGSTOP to 4711 and all its descendants)
        stops 4711
        times its candidate for 20 s     clock() does not advance
        resumes 4711                     (SIGCONT, since it has used no CPU time meanwhile; else SIGKILL)
    leaves                               the build goes on with as much of its 180 s left as before

Had B been computing itself, as in a verification, A would have waited until B next waited for a worker.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping

from kernelwright.kernelbench.evaluator.sandbox import process_tree

_STOP_S = 3.0  # seconds until a tree that does not stop is killed; chosen by hand


class TimingLock:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._slots: dict[int, float] = {}  # thread -> seconds that it has held the lock
        self._busy = 0  # slots that do what would disturb another's timing, just now
        self._away: set[int] = set()  # the first processes of workers that other slots wait for
        self._stopped: dict[int, dict[int, int]] = {}  # their processes, and the CPU time of these
        self._ended: set[int] = set()  # the first processes of those that would not stop
        self._ran_on: set[int] = set()  # and of those that did not stay so
        self._holder: int | None = None
        self._closed_s = 0.0
        self._since = 0.0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Make what this thread does in the block wait while another slot is timed."""
        me = threading.get_ident()
        if me in self._slots:
            yield
            return
        with self._changed:
            self._enter()
            self._slots[me] = 0.0
        try:
            yield
        finally:
            with self._changed:
                del self._slots[me]
                self._leave()

    @contextlib.contextmanager
    def waiting_for_worker(self, init_pid: int) -> Iterator[None]:
        """Wrap a wait for a worker, which may be stopped during it and goes on before it ends."""
        me = threading.get_ident()
        if me not in self._slots or me == self._holder:
            yield
            return
        with self._changed:
            self._away.add(init_pid)  # it may run already
            self._leave()
            self._changed.wait_for(self._open)
        try:
            yield
        finally:
            with self._changed:
                self._enter()
                self._away.discard(init_pid)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Wrap a wait of a slot for something that is no worker; it ends when no other slot is timed."""
        with self._changed:
            self._leave()
        try:
            yield
        finally:
            with self._changed:
                self._enter()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep all other slots, and what their workers run, stopped until the block ends."""
        me = threading.get_ident()
        in_slot = me in self._slots
        assert self._holder != me, "it is closed already"
        try:
            with self._changed:
                if in_slot:
                    self._leave()
                self._changed.wait_for(self._open)
                self._holder, self._since = me, time.monotonic()
                self._changed.wait_for(lambda: self._busy == 0)
                for init_pid in self._away:
                    self._stop(init_pid)
            yield
        finally:
            with self._changed:
                if self._holder == me:
                    for init_pid, used_ns in self._stopped.items():
                        self._let_go_on(init_pid, used_ns)
                    took = time.monotonic() - self._since
                    self._stopped, self._holder = {}, None
                    self._closed_s += took
                    if in_slot:
                        self._slots[me] += took
                if in_slot:
                    self._busy += 1
                self._changed.notify_all()

    def _stop(self, init_pid: int) -> None:
        if used_ns := process_tree.freeze(init_pid, _STOP_S):
            self._stopped[init_pid] = used_ns
            return
        self._ended.add(init_pid)
        process_tree.kill(init_pid)  # it will not have it; the slot that waits for it will see that it died

    def _let_go_on(self, init_pid: int, used_ns: Mapping[int, int]) -> None:
        if process_tree.stood_still(used_ns):
            process_tree.thaw(list(used_ns))
        else:
            self._ran_on.add(init_pid)
            process_tree.kill(init_pid)

    def ran_on(self, init_pid: int) -> bool:
        """Return True once for a worker that was killed because it ran while it was stopped."""
        with self._changed:
            if init_pid not in self._ran_on:
                return False
            self._ran_on.remove(init_pid)
            return True

    def ended(self, init_pid: int) -> bool:
        """Return True once for a worker that was killed because it could not be stopped."""
        with self._changed:
            if init_pid not in self._ended:
                return False
            self._ended.remove(init_pid)
            return True

    @property
    def closed_here(self) -> bool:
        """True if this thread holds the lock."""
        return self._holder == threading.get_ident()

    @property
    def elsewhere(self) -> bool:
        """True if another thread holds the lock."""
        return self._holder not in (None, threading.get_ident())

    def clock(self) -> float:
        """Seconds in which this slot was free to run, from an arbitrary start."""
        now, me = time.monotonic(), threading.get_ident()
        with self._changed:
            if me not in self._slots:
                return now
            others_s = self._closed_s - self._slots[me]
            if self._holder is not None and self._holder != me:
                others_s += now - self._since
            return now - others_s

    def _open(self) -> bool:
        return self._holder is None

    def _enter(self) -> None:
        self._changed.wait_for(self._open)
        self._busy += 1

    def _leave(self) -> None:
        self._busy -= 1
        self._changed.notify_all()
