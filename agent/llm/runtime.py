"""An event loop in a separate thread, which queries models while other threads wait for answers.

It holds the timing lock of the evaluator as a slot does: while candidates are timed it pauses, and answers
wait in the sockets. Parsing sixteen streams would be noise in a timing on the same cores.
"""

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Self, TypeVar

from kernelwright.kernelbench.evaluator import TimingLock

T = TypeVar("T")


class _IdleSelector(selectors.DefaultSelector):
    """Selector that waits for events outside its slot of the timing lock."""

    def __init__(self, timing_lock: TimingLock) -> None:
        super().__init__()
        self._timing_lock = timing_lock

    def select(self, timeout: float | None = None) -> Any:
        with self._timing_lock.waiting():
            return super().select(timeout)


class Runtime:
    def __init__(self, timing_lock: TimingLock) -> None:
        self._timing_lock, self._aborted = timing_lock, False
        self._lock = threading.Lock()
        self._loop = asyncio.SelectorEventLoop(_IdleSelector(self._timing_lock))
        self._thread = threading.Thread(target=self._run, name="models", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._timing_lock.shared():
            self._loop.run_forever()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, or raise its error. An interrupt of the waiting thread ends it.

        Raises concurrent.futures.CancelledError once everything is aborted.
        """
        with self._lock:
            if self._aborted:
                work.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def abort(self) -> None:
        """End all work under way, whoever waits for it, and begin no more."""
        with self._lock:
            self._aborted = True
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Close the loop after running `last` in it. Idempotent."""
        if self._loop.is_closed():
            return
        self.abort()
        if last is not None:
            asyncio.run_coroutine_threadsafe(last(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _end_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
