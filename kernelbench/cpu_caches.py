"""The caches of this machine's CPUs, as far as Linux tells of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEVICES = Path("/sys/devices/system/cpu")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


@dataclass(frozen=True)
class CpuCache:
    """`kind`: Data, Instruction or Unified. `ways`, `line_bytes`: 0 where they are not told."""

    level: int
    kind: str
    size_bytes: int
    ways: int
    line_bytes: int
    shared_by: str  # CPUs, in Linux's notation


def cpu_caches(cpu: int = 0, devices: Path = DEVICES) -> Iterator[CpuCache]:
    """Those that a CPU uses; none where nothing is told."""
    for folder in sorted((devices / f"cpu{cpu}" / "cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _told(folder, "size"))
        level = _number(folder, "level")
        if size is not None and level:
            yield CpuCache(
                level=level,
                kind=_told(folder, "type"),
                size_bytes=int(size[1]) << _UNITS[size[2]],
                ways=_number(folder, "ways_of_associativity"),
                line_bytes=_number(folder, "coherency_line_size"),
                shared_by=_told(folder, "shared_cpu_list"),
            )


def _number(folder: Path, name: str) -> int:
    told = _told(folder, name)
    return int(told) if told.isdecimal() else 0


def _told(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text().strip()
    except OSError:
        return ""
