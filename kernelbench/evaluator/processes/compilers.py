"""Inductor's compilers in a worker: processes for Triton, threads that wait for g++ for C++.

They are the worker's own: the fork server must have no threads, and what a worker has started is stopped with
it while another evaluation is timed, and counts towards its limits. None is left when a baseline is timed.
"""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any

_VARIABLE = "TORCHINDUCTOR_COMPILE_THREADS"  # read when Inductor is imported, and by max-autotune


def allow(count: int) -> None:
    """Let Inductor start so many compilers in this process from now on; one where it cannot have a pool."""
    count = count if _has_semaphores() else 1
    os.environ[_VARIABLE] = str(count)
    settings: Any = sys.modules.get("torch._inductor.config")
    if settings is not None:
        settings.compile_threads = count
        settings.worker_start_method = "subprocess"  # a fork of this process would have CUDA's state


def _has_semaphores() -> bool:
    """Return True if this process may create them; a pool that may not would be waited for in vain."""
    try:
        multiprocessing.Lock()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def several(count: int) -> Iterator[None]:
    """Let Inductor start so many compilers in the block; at its end they are gone."""
    if count <= 1:
        yield
        return
    from torch._inductor import async_compile

    allow(count)
    try:
        yield
    finally:
        allow(1)
        async_compile.shutdown_compile_workers()
        threads = async_compile.AsyncCompile.pool
        if threads.cache_info().currsize:
            threads().shutdown(wait=True, cancel_futures=True)
            threads.cache_clear()
