"""What was measured of a machine: the numbers, and which of them bound a kernel."""

from typing import Literal

from pydantic import Field

from kernelwright.kernelbench.records import SCHEMA, Fingerprint, Record

Kind = Literal["copy", "read", "triad"]
KINDS: tuple[Kind, ...] = ("copy", "read", "triad")


class Bandwidth(Record):
    """Of one way to go through memory, all threads together, again and again."""

    kind: Kind
    working_set_bytes: int  # of all arrays and threads together
    bytes_s: float  # read and written, as the loop does; what a cache reads of its own accord is not counted
    streaming: bool = False  # stores past the caches were the faster ones


class Peak(Record):
    """Multiplications and additions, both counted."""

    precision: str  # "fp32", "tf32", "bf16", "fp16", "fp64", "int8"
    means: Literal["matmul", "vector units"]
    flops_s: float
    path: str  # whose code, and which instructions, as far as they are known

    @property
    def unit(self) -> str:
        return "OP/s" if self.precision == "int8" else "FLOP/s"


class Overhead(Record):
    name: str
    seconds: float  # for one


class Cache(Record):
    """One level, as much of it as the threads have together."""

    name: str
    bytes: int


class Level(Record):
    """Where data can lie, and the most that comes from there."""

    name: str  # "L1", "L2", "L3", "memory"
    bandwidths: dict[Kind, float]  # bytes/s

    @property
    def best(self) -> Kind:
        return max(self.bandwidths, key=lambda kind: self.bandwidths[kind])

    @property
    def bytes_s(self) -> float:
        return self.bandwidths[self.best]


class Survey(Record):
    """What one device can do at best."""

    schema_version: int = Field(default=SCHEMA)
    device: str  # "cpu", "cuda:0"
    fingerprint: Fingerprint
    load: float  # processes that wanted a CPU, on average over the minute before
    caches: tuple[Cache, ...]  # the nearest first
    bandwidths: tuple[Bandwidth, ...]
    peaks: tuple[Peak, ...]
    overheads: tuple[Overhead, ...]

    def curve(self, kind: Kind) -> tuple[Bandwidth, ...]:
        """The smallest working set first."""
        mine = (found for found in self.bandwidths if found.kind == kind)
        return tuple(sorted(mine, key=lambda found: found.working_set_bytes))

    def levels(self) -> tuple[Level, ...]:
        """The caches and the memory, each by the working sets that lie in it and not in the one before.

        A working set lies in a cache that it fills at most half of: other data is there too. One of
        twice the cache before does not lie in that one.
        """
        found = []
        for name, low, high in self._ranges():
            inside = {
                kind: max(each.bytes_s for each in chosen)
                for kind in KINDS
                if (chosen := [c for c in self.curve(kind) if low <= c.working_set_bytes <= high])
            }
            if inside:
                found.append(Level(name=name, bandwidths=inside))
        return tuple(found)

    def _ranges(self) -> list[tuple[str, float, float]]:
        """Of each level: its name, the smallest and the largest working set in bytes."""
        ranges: list[tuple[str, float, float]] = []
        before = 0
        for cache in self.caches:
            ranges.append((cache.name, 2.0 * before, cache.bytes / 2))
            before = cache.bytes
        return [*ranges, ("memory", 2.0 * before, float("inf"))]
