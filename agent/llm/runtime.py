"""An event loop in a thread of its own, in which models are asked while other threads wait for answers."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Runtime:
    def __init__(self) -> None:
        self._aborted = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="models", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives or raises. An interrupt of the waiting thread ends it.

        Raises concurrent.futures.CancelledError once all is aborted.
        """
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
        """End what is under way, whoever waits for it, and begin nothing more."""
        self._aborted = True
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """With something to be done in the loop `last`. Idempotent."""
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
