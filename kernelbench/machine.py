"""Description of this machine, on which every number depends."""

import itertools
import os
import platform
import resource
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from kernelwright.kernelbench import control_groups, cpu_caches
from kernelwright.kernelbench.cpu_caches import SharedCache
from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Fingerprint

UNKNOWN_CACHE_BYTES = 32 << 20  # what a last-level cache is taken for of which nothing is told
_MEMORY_INFO = Path("/proc/meminfo")
_VECTORS = {"sse4_2", "avx", "avx2", "fma", "f16c", "gfni"}


def cache_folder() -> Path:
    """Return the folder of builds and measured ceilings: $KERNELWRIGHT_HOME, else ~/.cache/kernelwright.

    Raises StorageError if there is neither.
    """
    given = os.environ.get("KERNELWRIGHT_HOME")
    if given:
        return Path(given)
    try:
        return Path.home() / ".cache" / "kernelwright"
    except RuntimeError:  # no HOME, and a user that the system does not know, as in some containers
        raise StorageError("no home folder is known", "set KERNELWRIGHT_HOME to a writable folder") from None


def usable_cpus() -> int:
    """Return the CPUs this process can keep busy: those it may run on, or fewer under a time quota."""
    quota = control_groups.cpu_quota()
    cpus = len(os.sched_getaffinity(0))
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def physical_threads() -> int:
    """Return the number of threads for kernels: `usable_cpus`, hyperthreads counted once."""
    return max(1, min(len(_cores()), usable_cpus()))


def parts_of_cpus(count: int) -> list[frozenset[int]]:
    """Return `count` parts of this process's CPUs, each of whole cores; with fewer cores, each is all CPUs.

    Neighbouring cores go together, as they share caches and memory.
    """
    cores = _cores()
    if len(cores) < count:
        return [frozenset().union(*cores)] * count
    bounds = [len(cores) * number // count for number in range(count + 1)]
    return [frozenset().union(*cores[a:b]) for a, b in itertools.pairwise(bounds)]


def _cores() -> list[frozenset[int]]:
    """Return the CPUs of this process by core, those with the lowest numbers first."""
    cores: dict[str, set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = cpu_caches.DEVICES / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), set()).add(cpu)
    return [frozenset(cpus) for cpus in cores.values()]


@cache
def compiler() -> str | None:
    """Return the first line of the C++ compiler's --version; None if there is none."""
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


def last_level_caches() -> tuple[SharedCache, ...]:
    """Return the last-level caches of this process's CPUs, at least one.

    If no third level is known there may be one all the same, as in a virtual machine; then one of
    UNKNOWN_CACHE_BYTES is assumed, or of the known size if that is more.
    """
    found = cpu_caches.own_caches()
    last = max((cache.level for cache in found), default=0)
    if last >= 3:
        return tuple(cache for cache in found if cache.level == last)
    told = sum(cache.size_bytes for cache in found if cache.level == last)
    return (SharedCache(3, max(told, UNKNOWN_CACHE_BYTES), frozenset(os.sched_getaffinity(0))),)


def memory_bytes() -> int:
    """Return the machine's memory, or the limit of its container."""
    return min([_physical_bytes(), *(most for most, _ in control_groups.memory_limits())])


def available_bytes() -> int:
    """Return the available memory, by the system's estimate and the container's remaining limit."""
    counts = dict(line.split(":", 1) for line in _MEMORY_INFO.read_text().splitlines())
    free = int(counts["MemAvailable"].split()[0]) << 10
    return max(0, min([free, *(most - taken for most, taken in control_groups.memory_limits())]))


def allocatable_bytes() -> int:
    """Return the bytes this process or its children can still allocate; see `ulimit -v`, `ulimit -d`."""
    own = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min([available_bytes(), *(limit for limit in own if limit != resource.RLIM_INFINITY)])


def _physical_bytes() -> int:
    counts = dict(line.split(":", 1) for line in _MEMORY_INFO.read_text().splitlines())
    return int(counts["MemTotal"].split()[0]) << 10


def cpu_hardware() -> tuple[str, ...]:
    """Facts of the CPU that a kernel's design depends on: vector instructions, and caches of a core."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    vectors = [flag for flag in flags if flag in _VECTORS or flag.startswith(("avx512", "amx_"))]
    sizes = {cache.level: cache.size_bytes for cache in cpu_caches.own_caches() if cache.level < 3}
    caches = [f"{size >> 10} KiB of {'L1d' if level == 1 else 'L2'}" for level, size in sorted(sizes.items())]
    facts = []
    if vectors:
        facts.append(f"vector instructions: {' '.join(vectors)}")
    if caches:
        facts.append(f"{' and '.join(caches)} a core")
    return tuple(facts)


def fingerprint(threads: int) -> Fingerprint:
    return Fingerprint(
        chip=_chip(),
        threads=threads,
        memory_bytes=memory_bytes(),
        last_level_cache_bytes=sum(cache.size_bytes for cache in last_level_caches()),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=version("torch"),
        compiler=compiler() or "none",
    )
