"""Threads wait for what is done in one event loop, and are told at once when it ends."""

import asyncio
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from kernelwright.agent.llm.runtime import Runtime
from kernelwright.kernelbench.evaluator import TimingLock


async def later(value: int, seconds: float = 0.05) -> int:
    await asyncio.sleep(seconds)
    return value


def test_many_threads_wait_at_a_time() -> None:
    with Runtime(TimingLock()) as runtime, ThreadPoolExecutor(20) as threads:
        started = time.monotonic()
        assert list(threads.map(lambda i: runtime.wait(later(i, 0.3)), range(20))) == list(range(20))
        assert time.monotonic() - started < 3


def test_what_is_raised_reaches_whoever_waits() -> None:
    async def fails() -> None:
        raise ValueError("no")

    with Runtime(TimingLock()) as runtime, pytest.raises(ValueError, match="no"):
        runtime.wait(fails())


def test_an_abort_ends_all_that_is_waited_for_and_what_comes_after() -> None:
    with Runtime(TimingLock()) as runtime, ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(runtime.wait, later(i, 600)) for i in range(4)]
        time.sleep(0.2)
        runtime.abort()
        for future in waiting:
            with pytest.raises(CancelledError):
                future.result(timeout=10)
        with pytest.raises(CancelledError):
            runtime.wait(later(1))


def test_closing_ends_the_thread() -> None:
    before = threading.active_count()
    closed = []

    async def last() -> None:
        closed.append(True)

    runtime = Runtime(TimingLock())
    assert threading.active_count() == before + 1
    runtime.close(last)
    runtime.close()
    assert threading.active_count() == before and closed == [True]


def test_it_stands_still_while_a_candidate_is_timed() -> None:
    timing_lock, ticks = TimingLock(), 0

    async def tick() -> None:
        nonlocal ticks
        for _ in range(100):
            ticks += 1
            await asyncio.sleep(0.005)

    with Runtime(timing_lock) as runtime, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: runtime.wait(tick()))
        time.sleep(0.1)
        with timing_lock.exclusive():
            before = ticks
            time.sleep(0.2)
            assert ticks == before > 0
        waiting.result(10)
        assert ticks == 100
