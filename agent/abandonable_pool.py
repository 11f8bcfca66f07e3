"""Waiting for several models at a time."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def abandonable_pool(count: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """Nobody waits for those that are under way when the block is left early: an interrupt must not hang."""
    executor = ThreadPoolExecutor(count, name)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
