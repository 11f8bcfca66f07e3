"""Cache eviction: putting everything else out of the last-level caches by reading memory that nobody needs.

With a last-level cache of 32 MiB that all CPUs share, 48 MiB are read, one word of each line of 64 bytes.
Here for a cache of 1 MiB, when that much may be allocated, and when it may not: then what was cached may
still be.

>>> cache = SharedCache(level=3, size_bytes=1 << 20, cpus=frozenset({0}))
>>> evict = Eviction([cache], most_bytes=8 << 20)
>>> evict()
>>> evict.size_bytes / (1 << 20), evict.complete
(1.5, True)
>>> Eviction([cache], most_bytes=1 << 20).complete
False
"""

import contextlib
import functools
import os
import threading
from collections.abc import Sequence

import numpy as np

from kernelwright.kernelbench.cpu_caches import SharedCache
from kernelwright.kernelbench.machine import allocatable_bytes, last_level_caches

_TIMES = 1.5  # multiple of a cache's size that is read, as replacement is not strictly LRU; chosen by hand
_SHARE = 4  # reciprocal of the largest share of the allocatable memory; chosen by hand
_LINE_BYTES = 64  # of a cache line on x86


class Eviction:
    """Empties each last-level cache that this process's CPUs have, from the CPUs that share it.

    Each of them reads a part, at the same time: a cache of 300 MiB is emptied in 16 ms by two CPUs, in 29 by
    one, and each reads through a cache of its own as well. The memory that is read, 1.5 times the largest
    cache, is shared by all sessions of a process.
    """

    def __init__(self, caches: Sequence[SharedCache], most_bytes: int) -> None:
        """`most_bytes`: the largest allocation."""
        wanted = int(_TIMES * max(cache.size_bytes for cache in caches))
        self._homes = [sorted(cache.cpus) for cache in caches]
        self.complete = wanted <= most_bytes  # whether what was in the caches is out of them afterwards
        try:
            self._words = np.ones(min(wanted, most_bytes) // 8, dtype=np.int64)
        except MemoryError:
            self._words, self.complete = np.ones(0, dtype=np.int64), False

    @property
    def size_bytes(self) -> int:
        """Size of the memory that is read."""
        return self._words.nbytes

    def __call__(self) -> None:
        parts = [
            (cpu, part)
            for cpus in self._homes
            for cpu, part in zip(cpus, np.array_split(self._words, len(cpus)), strict=True)
        ]
        threads = [threading.Thread(target=self._read_on, args=each) for each in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _read_on(self, cpu: int, words: np.ndarray) -> None:
        with contextlib.suppress(OSError):  # where it is not to be had any more
            os.sched_setaffinity(0, {cpu})  # of this thread alone
        lines = words[:: _LINE_BYTES // 8]
        if len(lines):
            lines.max()


@functools.cache
def of_machine() -> Eviction:
    """Eviction for this process's caches, created on first use."""
    return Eviction(last_level_caches(), allocatable_bytes() // _SHARE)
