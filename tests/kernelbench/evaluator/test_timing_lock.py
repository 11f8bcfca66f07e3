"""While one slot times, other slots and their workers stand still, and their clocks with them."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.sandbox import process_tree

NOBODY = 2**22 + 1  # no process has this pid


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def spinning() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def a_slot_waiting_for(timing_lock: TimingLock, pid: int) -> Iterator[None]:
    waiting, over = threading.Event(), threading.Event()

    def wait() -> None:
        with timing_lock.shared(), timing_lock.waiting_for_worker(pid):
            waiting.set()
            over.wait(30)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(30)
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        assert not thread.is_alive()


def test_a_worker_that_another_lane_waits_for_is_stopped_meanwhile() -> None:
    timing_lock = TimingLock()
    with spinning() as worker, a_slot_waiting_for(timing_lock, worker.pid):
        with timing_lock.exclusive():
            assert state(worker.pid) == "T"
        assert state(worker.pid) in "RS"


def test_an_answer_that_came_while_it_was_closed_is_taken_when_it_opens() -> None:
    """And the worker goes on then, though nobody waits for it any more."""
    timing_lock, waiting, answered, taken = (
        TimingLock(),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def wait(pid: int) -> None:
        with timing_lock.shared():
            with timing_lock.waiting_for_worker(pid):
                waiting.set()
                answered.wait(30)
            taken.set()

    with spinning() as worker:
        thread = threading.Thread(target=wait, args=(worker.pid,))
        thread.start()
        waiting.wait(30)
        with timing_lock.exclusive():
            answered.set()
            assert not taken.wait(0.2)
        assert taken.wait(30)
        assert state(worker.pid) in "RS"
        thread.join()


def test_a_worker_that_is_about_to_be_waited_for_is_stopped_too() -> None:
    """A worker runs from before it is asked; its slot may have to wait for the lock with that."""
    timing_lock, closing, over = TimingLock(), threading.Event(), threading.Event()

    def ask(pid: int) -> None:
        with timing_lock.shared():
            closing.set()
            time.sleep(0.2)  # by now the other one waits for this slot
            with timing_lock.waiting_for_worker(pid):
                over.wait(30)

    with spinning() as worker:
        thread = threading.Thread(target=ask, args=(worker.pid,))
        thread.start()
        closing.wait(30)
        with timing_lock.exclusive():
            assert state(worker.pid) == "T"
        assert state(worker.pid) in "RS"
        over.set()
        thread.join()


def test_who_does_not_stop_is_ended_and_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is no verdict on what it ran."""
    timing_lock = TimingLock()
    with spinning() as worker:
        with a_slot_waiting_for(timing_lock, worker.pid):
            with monkeypatch.context() as patch:
                patch.setattr(process_tree, "freeze", lambda *_, **__: [])
                with timing_lock.exclusive():
                    assert not timing_lock.elsewhere
            assert worker.wait(30) == -signal.SIGKILL
        assert timing_lock.ended(worker.pid) and not timing_lock.ended(worker.pid)


def test_who_fails_to_close_it_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[int]:
        raise OSError("too many open files")

    timing_lock = TimingLock()
    with a_slot_waiting_for(timing_lock, NOBODY), monkeypatch.context() as patch:
        patch.setattr(process_tree, "freeze", fail)
        with pytest.raises(OSError, match="too many"), timing_lock.exclusive():
            pass
    with timing_lock.exclusive():
        pass


def test_no_lane_does_anything_while_another_times() -> None:
    timing_lock, timing, stop = TimingLock(), threading.Event(), threading.Event()
    seen: list[bool] = []

    def work() -> None:
        while not stop.is_set():
            with timing_lock.shared():
                for _ in range(20):
                    seen.append(timing.is_set())
                    with timing_lock.waiting_for_worker(NOBODY):
                        time.sleep(0.0005)
                    seen.append(timing.is_set())

    def time_it() -> None:
        with timing_lock.shared():
            for _ in range(20):
                with timing_lock.exclusive():
                    timing.set()
                    time.sleep(0.003)
                    timing.clear()

    threads = [threading.Thread(target=work) for _ in range(3)]
    timers = [threading.Thread(target=time_it) for _ in range(2)]
    for thread in threads + timers:
        thread.start()
    for thread in timers:
        thread.join()
    stop.set()
    for thread in threads:
        thread.join()
    assert len(seen) > 40 and not any(seen)


def test_time_limits_do_not_count_what_another_lane_takes() -> None:
    timing_lock, waiting, over = TimingLock(), threading.Event(), threading.Event()
    clocks: list[float] = []

    def wait() -> None:
        with timing_lock.shared():
            clocks.append(timing_lock.clock())
            with timing_lock.waiting_for_worker(NOBODY):
                waiting.set()
                over.wait(30)
                clocks.append(timing_lock.clock())  # still closed
            clocks.append(timing_lock.clock())

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(30)
    with timing_lock.exclusive():
        time.sleep(1.5)
        over.set()
        time.sleep(0.1)
    thread.join()
    assert clocks[1] - clocks[0] < 0.8 and clocks[2] - clocks[0] < 0.8


def test_the_time_that_a_lane_keeps_it_closed_is_its_own() -> None:
    timing_lock = TimingLock()
    with timing_lock.shared():
        started, real = timing_lock.clock(), time.monotonic()
        with timing_lock.exclusive():
            time.sleep(0.3)
            assert timing_lock.clock() - started >= 0.3
        assert abs((timing_lock.clock() - started) - (time.monotonic() - real)) < 0.1


def test_alone_it_is_open() -> None:
    timing_lock = TimingLock()
    with timing_lock.exclusive(), timing_lock.waiting_for_worker(NOBODY):
        assert abs(timing_lock.clock() - time.monotonic()) < 1.0
