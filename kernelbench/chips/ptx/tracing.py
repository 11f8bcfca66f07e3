"""A launch as its PTX tells it: what a warp does, how long it takes alone, and what memory it asks for.

Four blocks of the grid are sampled, with a warp in the middle of each. Its lanes 0, 1, 2, 4, 8 and 16 give
the addresses of all 32, since an address depends on the bits of the lane one by one. What a small cache of
sectors does not hold goes to the L2 cache.
"""

from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.chips.ptx.parsing import PtxKernel
from kernelwright.kernelbench.chips.ptx.pricing import UNREAD, Clock, Latencies, bytes_of, counted, numbered
from kernelwright.kernelbench.chips.ptx.walking import MASKED, Geometry, ThreadPath, Walker
from kernelwright.kernelbench.errors import Unavailable

_WARP, _SECTOR = 32, 32
# Blocks that are sampled, of a grid in so many parts: in pairs about its middle, so that work that grows with
# a block's number modulo another number, as under a causal mask in each head, is sampled with its mean.
_PARTS, _SAMPLED = 11, (2, 4, 7, 9)
_SOME_STEPS = 3000  # of basic blocks, in which accesses of all lanes are compared
_SOME_ACCESSES = 6000
_L1_SECTORS = 128  # that a warp has of the L1 cache: 256 KiB for 64 warps
_SCATTERED = 32.0  # sectors of a request whose addresses depend on data
IN_L1 = 1 << 16  # bytes of a tensor, up to which all blocks of a multiprocessor find it in their L1 cache
_COMMON, _OFTEN = 1 << 24, 4.0  # bytes, and times that a tensor is asked for, from which L2 caches hold it
_NEIGHBOURS, _FIRST_STEPS = 128, 40  # blocks whose first loads are compared, and basic blocks of their ways
_HIT = 0.3  # sectors of a request, below which most of its loads hit the L1 cache


@dataclass(frozen=True)
class MemoryUse:
    """Use of a tensor by a launch. `size`: bytes, 0 if unknown; `again`: a thread's accesses by address.

    `apart`: share of neighbouring blocks that begin to load it at another place than all before them: of 128
    tiles of a product, 8 by 16, 8 begin with other rows, and `apart` is 1/16 of what they are read from.
    """

    size: int
    loaded: float  # bytes in whole sectors, of the whole grid
    stored: float
    again: float
    apart: float = 1.0


@dataclass(frozen=True)
class LaunchTrace:
    """Work of a warp of a launch, as the mean of the sampled ones.

    `cycles`: of a warp alone, if what it loads again is in the L2 cache, and `cycles_beyond` if it is not;
    `waits`: latencies of device memory in `cycles`; `units`, `flops`: see `pricing.counted`.
    """

    cycles: float
    cycles_beyond: float
    longest: float  # of the sampled warps' cycles, over the mean
    waits: float
    loaded_bytes: float  # of a warp, as its threads ask for them
    stored_bytes: float
    units: Mapping[str, float]
    flops: Mapping[str, float]
    memory: tuple[MemoryUse, ...]
    by_data: float  # share of the accesses whose addresses depend on data


@dataclass(frozen=True)
class LaunchArguments:
    """Arguments of a launch: values by position, None if unknown, and its tensors as (address, bytes)."""

    block: tuple[int, int, int]
    values: tuple[int | None, ...]
    tensors: tuple[tuple[int, int], ...]


def trace(
    kernel: PtxKernel,
    grid: Sequence[int],
    arguments: LaunchArguments,
    latencies: Latencies,
    unrolled: Mapping[int, int] | None = None,
) -> LaunchTrace:
    """Trace a launch. `unrolled`: see `Clock`. Raises Unavailable for what cannot be read."""
    if not all(grid):
        raise Unavailable("its grid is not known")
    for this in numbered(kernel.blocks):
        if UNREAD.match(this.opcode):
            raise Unavailable(f"{this.opcode.partition(' ')[0]} is not modelled")
    given = {n: v for n, v in zip(kernel.parameters, arguments.values, strict=False) if v is not None}
    walker = Walker(kernel, given)
    warps = -(-_product(arguments.block) // _WARP) * _product(grid)
    samples = [
        _Sample(walker, where, arguments, latencies, unrolled or {}, warps)
        for where in _places(grid, arguments.block)
    ]
    count = len(samples)

    def mean(values: Iterator[float]) -> float:
        return sum(values) / count

    cycles = mean(s.cycles for s in samples)
    units, flops = Counter[str](), Counter[str]()
    for sample in samples:
        units.update(sample.units)
        flops.update(sample.flops)
    return LaunchTrace(
        cycles=cycles,
        cycles_beyond=mean(s.cycles_beyond for s in samples),
        longest=max(s.cycles for s in samples) / cycles if cycles else 1.0,
        waits=mean((s.cycles - s.cycles_without) / latencies.dram for s in samples),
        loaded_bytes=mean(s.loaded for s in samples),
        stored_bytes=mean(s.stored for s in samples),
        units={name: total / count for name, total in units.items()},
        flops={name: total / count for name, total in flops.items()},
        memory=tuple(_merged([s.memory for s in samples], arguments, warps, _apart(walker, grid, arguments))),
        by_data=mean(s.by_data for s in samples),
    )


def _product(sizes: Sequence[int]) -> int:
    x, y, z = sizes
    return x * y * z


def _places(grid: Sequence[int], block: tuple[int, int, int]) -> list[list[Geometry]]:
    """Lanes of a middle warp in some blocks of the grid."""
    x, y, z = grid
    blocks = x * y * z
    chosen = sorted({blocks * part // _PARTS for part in _SAMPLED})
    threads = _product(block)
    warp = -(-threads // _WARP) // 2
    lanes = [lane for lane in (0, 1, 2, 4, 8, 16) if warp * _WARP + lane < threads]

    def at(number: int, lane: int) -> Geometry:
        thread = warp * _WARP + lane
        within = (thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1]))
        where = (number % x, number // x % y, number // (x * y))
        return Geometry(within, where, block, (x, y, z))

    return [[at(number, lane) for lane in lanes] for number in chosen]


def _apart(walker: Walker, grid: Sequence[int], arguments: LaunchArguments) -> dict[int, float]:
    """Return `MemoryUse.apart` of each tensor that is loaded, of blocks in the middle of the grid."""
    x, y, z = grid
    count = min(x * y * z, _NEIGHBOURS)
    first = (x * y * z - count) // 2
    tensors, code = _Tensors(arguments.tensors), numbered(walker.kernel.blocks)
    begins: defaultdict[int, set[int]] = defaultdict(set)
    for number in range(first, first + count):
        where = (number % x, number // x % y, number // (x * y))
        way = walker.walk(Geometry((0, 0, 0), where, arguments.block, (x, y, z)), _FIRST_STEPS, stop=True)
        found: dict[int, int] = {}
        for at, address in _executed(way).accesses:
            if address is not None and code[at].name not in ("st", "red"):
                found.setdefault(tensors.of(address), address)
        for place, address in found.items():
            begins[place].add(address)
    return {place: len(addresses) / count for place, addresses in begins.items()}


@dataclass
class _Use:
    loaded: float = 0.0
    stored: float = 0.0
    accesses: int = 0
    places: int = 0


class _Sample:
    """A warp. Only its first lane goes all the way."""

    def __init__(
        self,
        walker: Walker,
        lanes: Sequence[Geometry],
        arguments: LaunchArguments,
        latencies: Latencies,
        unrolled: Mapping[int, int],
        warps: int,
    ) -> None:
        kernel, code = walker.kernel, numbered(walker.kernel.blocks)
        first = _executed(walker.walk(lanes[0]))
        some = [walker.walk(lane, _SOME_STEPS, stop=True) for lane in lanes]
        sectors = _sectors(walker, some, len(lanes))
        self.units, self.flops = counted(kernel, first.blocks)
        times = _times(walker, first)
        tensors = _Tensors(arguments.tensors)
        uses: defaultdict[int, _Use] = defaultdict(_Use)
        seen: set[tuple[int, int]] = set()
        again: dict[int, int] = {}  # accesses of each instruction to an address that was accessed before
        for number, address in first.accesses:
            if address is not None:
                place = tensors.of(address)
                known = (place, address) in seen
                again[number] = again.get(number, 0) + known
                seen.add((place, address))
                if sectors.get(number, _SCATTERED) >= _HIT:  # others are not in `loaded`
                    uses[place].accesses += 1
                    uses[place].places += not known
        self.loaded = self.stored = 0.0
        unknown = 0
        where = {number: tensors.of(address) for number, address in first.accesses if address is not None}
        for number, count in times.items():
            this, place = code[number], where.get(number, -1)
            moved = sectors.get(number, _SCATTERED) * _SECTOR * count
            size = bytes_of(this) * _WARP * count
            if this.name in ("st", "red"):
                uses[place].stored += moved
                self.stored += size
            else:
                uses[place].loaded += moved
                self.loaded += size
            unknown += count if place == -1 and number not in where else 0
        total = sum(times.values())
        self.by_data = unknown / total if total else 0.0
        self.memory = dict(uses)

        def cost(near: float) -> dict[int, float]:
            found = {}
            for number, count in times.items():
                size = tensors.size(where.get(number, -1))
                asked = sectors.get(number, _SCATTERED) * _SECTOR * count * warps
                common = 0 < size <= _COMMON and asked > _OFTEN * size  # to all blocks
                hit = sectors.get(number, _SCATTERED) < _HIT or (common and size <= IN_L1)
                most = again.get(number, 0) > count / 2
                found[number] = (
                    latencies.l1 if hit else latencies.l2 if common else near if most else latencies.dram
                )
            return found

        way = first.blocks
        near, far = cost(latencies.l2), cost(latencies.dram)

        def elapsed(loads: Mapping[int, float], fence: float) -> float:
            clock = Clock(kernel, lambda number: loads.get(number, 0.0), fence, unrolled)
            return clock.elapsed(way)

        self.cycles, self.cycles_beyond = elapsed(near, latencies.l2), elapsed(far, latencies.l2)
        self.cycles_without = elapsed(dict.fromkeys(times, 0.0), 0.0)


def _executed(way: ThreadPath) -> ThreadPath:
    """Return a thread's way without the accesses that it was kept from."""
    return ThreadPath(way.blocks, [each for each in way.accesses if each[1] != MASKED])


def _times(walker: Walker, way: ThreadPath) -> Counter[int]:
    """Return how often each instruction that accesses memory was executed."""
    found: Counter[int] = Counter(number for number, _ in way.accesses)
    recorded = sum(found.values())
    blocks = Counter(way.blocks)
    place, executed = 0, 0
    for number, block in enumerate(walker.kernel.blocks):
        executed += sum(place + at in walker.memory for at in range(len(block.instructions))) * blocks[number]
        place += len(block.instructions)
    # Where not all were recorded, the rest is as what was.
    if recorded and recorded >= 200_000 and executed > recorded:
        return Counter({number: round(count * executed / recorded) for number, count in found.items()})
    return found


class _Tensors:
    def __init__(self, tensors: Sequence[tuple[int, int]]) -> None:
        self._sorted = sorted(set(tensors))
        self._begins = [begin for begin, _ in self._sorted]

    def of(self, address: int) -> int:
        """Return the number of the tensor, in the order of addresses; -1 if it is in none."""
        at = bisect_right(self._begins, address) - 1
        if at < 0:
            return -1
        begin, size = self._sorted[at]
        return at if address < begin + size + 4096 else -1  # a masked access may lie a little outside

    def size(self, place: int) -> int:
        return self._sorted[place][1] if place >= 0 else 0


def _sectors(walker: Walker, ways: Sequence[ThreadPath], lanes: int) -> dict[int, float]:
    """Sectors that go to the L2 cache, of a warp's execution of each instruction, on average."""
    code = numbered(walker.kernel.blocks)
    found = [dict(_by_occurrence(way.accesses[:_SOME_ACCESSES])) for way in ways]
    loads, stores = _Cache(), _Cache()
    total: Counter[int] = Counter()
    times: Counter[int] = Counter()
    for number, occurrence in max(found, key=len):
        addresses = [lane.get((number, occurrence), MASKED) for lane in found]
        width = bytes_of(code[number])
        known = [address for address in addresses if address is not None]
        if addresses[0] != MASKED:
            times[number] += 1
        if len(known) < len(addresses):
            total[number] += int(_SCATTERED)
            continue
        cache = stores if code[number].name in ("st", "red") else loads
        touched = {
            sector
            for address in _all_lanes(known, lanes)
            for sector in range(address // _SECTOR, (address + width - 1) // _SECTOR + 1)
        }
        total[number] += cache.missed(touched)
    return {number: total[number] / count for number, count in times.items() if count}


def _by_occurrence(
    accesses: Sequence[tuple[int, int | None]],
) -> Iterator[tuple[tuple[int, int], int | None]]:
    """Yield a thread's accesses, each by its instruction and how often that was executed before."""
    times: Counter[int] = Counter()
    for number, address in accesses:
        yield (number, times[number]), address
        times[number] += 1


def _all_lanes(known: Sequence[int], lanes: int) -> list[int]:
    """Return the addresses of all lanes by those of lanes 0, 1, 2, 4, and so on; less of masked ones."""
    if known[0] == MASKED:
        return [address for address in known if address != MASKED]
    found = [known[0]]
    for address in known[1:lanes]:
        if address != MASKED:
            found += [other + address - known[0] for other in found]
    return found


class _Cache:
    """The least recently used sectors of a warp's share of the L1 cache."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, None] = OrderedDict()

    def missed(self, sectors: set[int]) -> int:
        missed = 0
        for sector in sectors:
            if sector in self._held:
                self._held.move_to_end(sector)
                continue
            missed += 1
            self._held[sector] = None
            if len(self._held) > _L1_SECTORS:
                self._held.popitem(last=False)
        return missed


def _merged(
    samples: Sequence[Mapping[int, _Use]],
    arguments: LaunchArguments,
    warps: int,
    apart: Mapping[int, float],
) -> Iterator[MemoryUse]:
    tensors = _Tensors(arguments.tensors)
    for place in sorted({place for sample in samples for place in sample}):
        of = [sample[place] for sample in samples if place in sample]
        scale = warps / len(samples)
        places = sum(use.places for use in of)
        yield MemoryUse(
            size=tensors.size(place),
            loaded=sum(use.loaded for use in of) * scale,
            stored=sum(use.stored for use in of) * scale,
            again=sum(use.accesses for use in of) / places if places else 1.0,
            apart=apart.get(place, 1.0),
        )
