"""While one lane times, other lanes and their workers stand still, and their clocks with them."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.evaluator.processes.exclusive import Gate
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
def a_lane_waiting_for(gate: Gate, pid: int) -> Iterator[None]:
    waiting, over = threading.Event(), threading.Event()

    def wait() -> None:
        with gate.lane(), gate.away(pid):
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
    gate = Gate()
    with spinning() as worker, a_lane_waiting_for(gate, worker.pid):
        with gate.closed():
            assert state(worker.pid) == "T"
        assert state(worker.pid) in "RS"


def test_an_answer_that_came_while_it_was_closed_is_taken_when_it_opens() -> None:
    """And the worker goes on then, though nobody waits for it any more."""
    gate, waiting, answered, taken = Gate(), threading.Event(), threading.Event(), threading.Event()

    def wait(pid: int) -> None:
        with gate.lane():
            with gate.away(pid):
                waiting.set()
                answered.wait(30)
            taken.set()

    with spinning() as worker:
        thread = threading.Thread(target=wait, args=(worker.pid,))
        thread.start()
        waiting.wait(30)
        with gate.closed():
            answered.set()
            assert not taken.wait(0.2)
        assert taken.wait(30)
        assert state(worker.pid) in "RS"
        thread.join()


def test_a_worker_that_is_about_to_be_waited_for_is_stopped_too() -> None:
    """A worker runs from before it is asked; its lane may have to wait for the gate with that."""
    gate, closing, over = Gate(), threading.Event(), threading.Event()

    def ask(pid: int) -> None:
        with gate.lane():
            closing.set()
            time.sleep(0.2)  # by now the other one waits for this lane
            with gate.away(pid):
                over.wait(30)

    with spinning() as worker:
        thread = threading.Thread(target=ask, args=(worker.pid,))
        thread.start()
        closing.wait(30)
        with gate.closed():
            assert state(worker.pid) == "T"
        assert state(worker.pid) in "RS"
        over.set()
        thread.join()


def test_who_does_not_stop_is_ended_and_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is no verdict on what it ran."""
    gate = Gate()
    with spinning() as worker:
        with a_lane_waiting_for(gate, worker.pid):
            with monkeypatch.context() as patch:
                patch.setattr(process_tree, "freeze", lambda *_, **__: [])
                with gate.closed():
                    assert not gate.elsewhere
            assert worker.wait(30) == -signal.SIGKILL
        assert gate.ended(worker.pid) and not gate.ended(worker.pid)


def test_who_fails_to_close_it_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[int]:
        raise OSError("too many open files")

    gate = Gate()
    with a_lane_waiting_for(gate, NOBODY), monkeypatch.context() as patch:
        patch.setattr(process_tree, "freeze", fail)
        with pytest.raises(OSError, match="too many"), gate.closed():
            pass
    with gate.closed():
        pass


def test_no_lane_does_anything_while_another_times() -> None:
    gate, timing, stop = Gate(), threading.Event(), threading.Event()
    seen: list[bool] = []

    def work() -> None:
        while not stop.is_set():
            with gate.lane():
                for _ in range(20):
                    seen.append(timing.is_set())
                    with gate.away(NOBODY):
                        time.sleep(0.0005)
                    seen.append(timing.is_set())

    def time_it() -> None:
        with gate.lane():
            for _ in range(20):
                with gate.closed():
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
    gate, waiting, over = Gate(), threading.Event(), threading.Event()
    clocks: list[float] = []

    def wait() -> None:
        with gate.lane():
            clocks.append(gate.clock())
            with gate.away(NOBODY):
                waiting.set()
                over.wait(30)
                clocks.append(gate.clock())  # still closed
            clocks.append(gate.clock())

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(30)
    with gate.closed():
        time.sleep(1.5)
        over.set()
        time.sleep(0.1)
    thread.join()
    assert clocks[1] - clocks[0] < 0.8 and clocks[2] - clocks[0] < 0.8


def test_the_time_that_a_lane_keeps_it_closed_is_its_own() -> None:
    gate = Gate()
    with gate.lane():
        started, real = gate.clock(), time.monotonic()
        with gate.closed():
            time.sleep(0.3)
            assert gate.clock() - started >= 0.3
        assert abs((gate.clock() - started) - (time.monotonic() - real)) < 0.1


def test_alone_it_is_open() -> None:
    gate = Gate()
    with gate.closed(), gate.away(NOBODY):
        assert abs(gate.clock() - time.monotonic()) < 1.0
