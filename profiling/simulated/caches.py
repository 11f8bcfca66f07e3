"""The simulated caches: this machine's, as Linux describes them."""

from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.cpu_caches import DEVICES, cpu_caches
from kernelwright.kernelbench.errors import Unavailable


@dataclass(frozen=True)
class SimulatedCache:
    size_bytes: int
    ways: int
    line_bytes: int

    def __str__(self) -> str:
        size = self.size_bytes >> 10
        return f"{size >> 10} MiB" if size % 1024 == 0 else f"{size} KiB"

    @property
    def simulated(self) -> "SimulatedCache":
        """Largest cache of as many ways that is no larger: the simulator needs a power of two of sets."""
        sets = self.size_bytes // (self.ways * self.line_bytes)
        return SimulatedCache(
            (1 << sets.bit_length() - 1) * self.ways * self.line_bytes, self.ways, self.line_bytes
        )


@dataclass(frozen=True)
class Caches:
    """First and last level of cache: the simulator has no more."""

    instructions: SimulatedCache
    data: SimulatedCache
    last: SimulatedCache

    @property
    def words(self) -> tuple[str, ...]:
        """Options of callgrind."""
        named = (("I1", self.instructions), ("D1", self.data), ("LL", self.last))
        return tuple(f"--{name}={c.size_bytes},{c.ways},{c.line_bytes}" for name, c in named)


def of_machine(devices: Path = DEVICES) -> Caches:
    """Return this machine's caches. Raises Unavailable if Linux does not describe them."""
    found = {}
    for told in cpu_caches(devices=devices):
        if told.ways > 0 and told.size_bytes >= told.ways * told.line_bytes > 0:
            found[told.level, told.kind] = SimulatedCache(
                told.size_bytes, told.ways, told.line_bytes
            ).simulated
    data, instructions = found.get((1, "Data")), found.get((1, "Instruction"))
    last = max((level for level, kind in found if kind == "Unified"), default=None)
    if data is None or instructions is None or last is None:
        raise Unavailable(f"the kernel does not describe this machine's caches ({devices})")
    return Caches(instructions, data, found[last, "Unified"])
