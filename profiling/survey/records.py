"""Records of a machine's survey: bandwidths, peaks, overheads, and the levels derived from them."""

from typing import Literal

from pydantic import Field

from kernelwright.kernelbench.records import SCHEMA, Fingerprint, Record

Kind = Literal["copy", "read", "triad"]
KINDS: tuple[Kind, ...] = ("copy", "read", "triad")


class Bandwidth(Record):
    """Bandwidth of one access pattern, all threads together, over a repeated working set."""

    kind: Kind
    working_set_bytes: int  # of all arrays and threads together
    bytes_s: float  # read and written, as the loop does; what a cache reads of its own accord is not counted
    streaming: bool = False  # stores past the caches were the faster ones


class Peak(Record):
    """Peak rate of multiplications and additions, both counted."""

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
    """One level of cache, as much of it as the threads have together."""

    name: str
    bytes: int


class Level(Record):
    """A level of the memory hierarchy and its bandwidths."""

    name: str  # "L1", "L2", "L3", "memory"
    bandwidths: dict[Kind, float]  # bytes/s

    @property
    def best(self) -> Kind:
        return max(self.bandwidths, key=lambda kind: self.bandwidths[kind])

    @property
    def bytes_s(self) -> float:
        return self.bandwidths[self.best]


class Survey(Record):
    """Ceilings of one device."""

    schema_version: int = Field(default=SCHEMA)
    device: str  # "cpu", "cuda:0"
    fingerprint: Fingerprint
    load: float  # processes that wanted a CPU, on average over the minute before
    caches: tuple[Cache, ...]  # the nearest first
    bandwidths: tuple[Bandwidth, ...]
    peaks: tuple[Peak, ...]
    overheads: tuple[Overhead, ...]

    def curve(self, kind: Kind) -> tuple[Bandwidth, ...]:
        """Return the bandwidths of one kind, the smallest working set first."""
        mine = (found for found in self.bandwidths if found.kind == kind)
        return tuple(sorted(mine, key=lambda found: found.working_set_bytes))

    def levels(self) -> tuple[Level, ...]:
        """Return the caches and the memory, each by the working sets that fit in it and not in the last one.

        A working set fits in a cache that it fills at most half of: other data is there too. One of twice the
        size of the cache before does not fit in that one.
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
        """Return each level's name and its smallest and largest working set in bytes."""
        ranges: list[tuple[str, float, float]] = []
        before = 0
        for cache in self.caches:
            ranges.append((cache.name, 2.0 * before, cache.bytes / 2))
            before = cache.bytes
        return [*ranges, ("memory", 2.0 * before, float("inf"))]
