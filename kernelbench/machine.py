"""What this machine is; every number depends on it."""

import contextlib
import os
import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from kernelbench.cpu_caches import cpu_caches
from kernelbench.records import Fingerprint

_DEFAULT_CACHE_BYTES = 32 << 20
_GROUPS = Path("/sys/fs/cgroup")


def cache_folder() -> Path:
    """Where builds and measured ceilings are kept: $KERNELWRIGHT_HOME, else ~/.cache/kernelwright."""
    given = os.environ.get("KERNELWRIGHT_HOME")
    return Path(given) if given else Path.home() / ".cache" / "kernelwright"


def physical_threads() -> int:
    """Threads that kernels get: the CPUs this process may use, hyperthreads counted once."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.exists() else str(cpu))
    return max(1, len(cores))


@cache
def compiler() -> str | None:
    """First line of the C++ compiler's --version; None when there is none."""
    path = shutil.which(os.environ.get("CXX", "g++"))
    if path is None:
        return None
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else None


def _chip() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _last_level_cache_bytes() -> int:
    return max((found.size_bytes for found in cpu_caches()), default=_DEFAULT_CACHE_BYTES)


def memory_bytes() -> int:
    """The machine's, or what a container may take of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(most for most, _ in _containers())])


def available_bytes() -> int:
    """Memory that can still be taken, by the system's estimate and by what is left to a container."""
    line = next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemAvailable"))
    return min([int(line.split()[1]) << 10, *(most - taken for most, taken in _containers())])


def _containers() -> list[tuple[int, int]]:
    """What control groups allow and what is taken of it; files that could be read anew are not."""
    found = []
    for folder, most, taken in (
        (_GROUPS, "memory.max", "memory.current"),
        (_GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            allowed, used = int((folder / most).read_text()), int((folder / taken).read_text())
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            found.append((allowed, used - int(counts.get("inactive_file", 0))))
    return found


def fingerprint(threads: int) -> Fingerprint:
    return Fingerprint(
        chip=_chip(),
        threads=threads,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        last_level_cache_bytes=_last_level_cache_bytes(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=version("torch"),
        compiler=compiler() or "none",
    )
