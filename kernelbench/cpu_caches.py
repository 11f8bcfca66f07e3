"""The caches of this machine's CPUs, as Linux describes them."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEVICES = Path("/sys/devices/system/cpu")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


@dataclass(frozen=True)
class CpuCache:
    """A cache of a CPU. `kind`: Data, Instruction or Unified; `ways`, `line_bytes`: 0 if unknown."""

    level: int
    kind: str
    size_bytes: int
    ways: int
    line_bytes: int
    shared_by: str  # CPUs, in Linux's notation


@dataclass(frozen=True)
class SharedCache:
    """A cache for data, and those of this process's CPUs that share it."""

    level: int
    size_bytes: int
    cpus: frozenset[int]


def own_caches(devices: Path | None = None) -> tuple[SharedCache, ...]:
    """Return each data cache that this process's CPUs use, once, the nearest level first.

    A chip may have several last-level caches (AMD: one for every four to eight cores), a machine several
    chips.
    """
    sizes: dict[tuple[int, str], int] = {}  # level and the CPUs that share it -> bytes
    cpus: dict[tuple[int, str], set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        for cache in cpu_caches(cpu, devices):
            if cache.kind != "Instruction":
                key = cache.level, cache.shared_by or str(cpu)
                sizes[key] = cache.size_bytes
                cpus.setdefault(key, set()).add(cpu)
    return tuple(
        SharedCache(level, sizes[level, shared], frozenset(cpus[level, shared]))
        for level, shared in sorted(sizes, key=lambda key: (key[0], min(cpus[key])))
    )


def cpu_caches(cpu: int = 0, devices: Path | None = None) -> Iterator[CpuCache]:
    """Yield the caches of a CPU; none if Linux does not describe them."""
    for folder in sorted(((devices or DEVICES) / f"cpu{cpu}" / "cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(folder, "size"))
        level = _number(folder, "level")
        if size is not None and level:
            yield CpuCache(
                level=level,
                kind=_read(folder, "type"),
                size_bytes=int(size[1]) << _UNITS[size[2]],
                ways=_number(folder, "ways_of_associativity"),
                line_bytes=_number(folder, "coherency_line_size"),
                shared_by=_read(folder, "shared_cpu_list"),
            )


def _number(folder: Path, name: str) -> int:
    text = _read(folder, name)
    return int(text) if text.isdecimal() else 0


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text().strip()
    except OSError:
        return ""
