"""Predicted time of launches on a card that need not be present. Nothing here is measured.

A launch takes the longest of several times, each of which bounds it alone:

    memory    bytes that reach device memory / bandwidth
    L2        bytes that reach the L2 cache / its bandwidth
    latency   rounds of blocks * cycles of a block alone: Little's law, for what is in flight is that a round
    units     instructions of the busiest multiprocessor's warps / what its units take a cycle

together as the sixth root of the sum of sixth powers: two times that are alike add 12%, and 32% where as
much is stored as loaded (the power is 2.5 then). Softmax of 64 rows of 131072 numbers on an H100, by blocks
of 128 threads with two rows each:

    memory    67 MB / 3.0 TB/s                        22 µs
    latency   1 round * 3 passes * 128 loads * 350 ns  134 µs, for 32 blocks have 8 KiB in flight each

The parameters that no data sheet gives were fitted to RRZE's stream benchmark on an A100 (`BLOCK_CYCLES`);
results/published/static/cost_model.md holds the model against what was measured elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.chips.cards import Card
from kernelwright.kernelbench.chips.notes import Launched
from kernelwright.kernelbench.chips.occupancy import occupancy, warps_of
from kernelwright.kernelbench.chips.ptx.tracing import IN_L1, LaunchTrace, MemoryUse
from kernelwright.kernelbench.chips.torch_call import TorchCall
from kernelwright.kernelbench.errors import Unavailable

# Fitted by hand to gpu-stream/a100_80.txt of github.com/RRZE-HPC/gpu-benches at 1038c5d, where the bandwidth
# of one block of 32 threads a multiprocessor is 42 GB/s: 928 cycles a block, of which 552 are a load's.
BLOCK_CYCLES = 376.0  # from a block's end to its successor's first load
_WARP_CYCLES = 10.0  # that each warp of a block adds to that
DRAM_SHARE = 0.91  # of the published bandwidth that is reached: 0.93 by stores, 0.89 by loads and stores
# Powers of the times that are added, for loads alone, and for as many bytes loaded as stored: bandwidth and
# latency of the two together bend into each other more.
_POWER, _MIXED_POWER = 6.0, 2.5
_CACHED = 0.8  # of the L2 cache, up to which what was loaded is found there again
_SECTOR_CYCLE_BYTES = 64.0  # that a multiprocessor takes from the L2 cache in a cycle
# Of a launch: what it takes until the next one begins (A. Gray, "Getting Started with CUDA Graphs", NVIDIA
# 2019: 2.9 µs of kernel, 3.8 with launches that overlap), and the ramp of the first blocks.
LAUNCH_US = 2.0
# Results a cycle of a multiprocessor: CUDA C++ Programming Guide, "Throughput of Native Arithmetic
# Instructions". "lsu": passes of 128 bytes over shared memory and the L1 cache.
_RATES = {"issue": 128.0, "fp32": 128.0, "int": 64.0, "special": 16.0, "conversion": 64.0, "shuffle": 32.0}
_OF_CHIPS: Mapping[str, Mapping[str, float]] = {
    "sm_80": {"fp32": 64.0, "fp64": 32.0, "conversion64": 16.0},
    "sm_90": {"fp64": 64.0, "conversion64": 16.0},
    "sm_100": {"fp64": 64.0, "conversion64": 16.0},
}
_FEW_FP64 = {"fp64": 2.0, "conversion64": 2.0}  # of all other chips
TENSOR_SHARE = 0.8  # of the tensor cores' peak, that a loop of products reaches at best; assumed
STATED_ERROR = 1.5  # see results/published/static/cost_model.md


@dataclass(frozen=True)
class LaunchPrediction:
    """Predicted time of a launch, and what it rests on.

    `bound`: what takes longest: "memory", "L2", "latency", or a unit such as "issue" or "tensor".
    """

    time_us: float
    bound: str
    bounds_us: Mapping[str, float]
    waves: float  # rounds of blocks in which the grid fits on the card
    busy: float  # share of the multiprocessors that have a block
    resident: int  # blocks of a multiprocessor at a time
    dram_bytes: float
    l2_bytes: float
    in_flight: float  # bytes of loads under way on a busy multiprocessor, on average
    needed: float  # that Little's law asks of each multiprocessor for the card's bandwidth
    waits: float  # loads of device memory that a warp waits for one after the other


def predicted(launch: Launched, card: Card) -> LaunchPrediction:
    """Predict one launch. Raises Unavailable if its code was not traced, or for a card without figures."""
    trace = launch.trace
    if trace is None:
        raise Unavailable(f"its time is not predicted: {launch.untraced or 'its PTX was not read'}")
    if card.bytes_s is None or card.latencies is None:
        raise Unavailable(f"its time is not predicted: of {card.name} no bandwidth and latencies are stated")
    held = occupancy(card.chip, launch.threads, launch.registers, launch.shared_bytes).blocks
    if not held:
        raise Unavailable("not one of its blocks fits on a multiprocessor")
    x, y, z = launch.grid
    blocks, warps, cores = x * y * z, warps_of(launch.threads), card.multiprocessors
    busiest = -(-blocks // cores)
    resident = min(held, busiest)
    waves = blocks / (cores * held)
    memory = _Memory.of(trace, card, max(1.0, waves))
    own = trace.cycles if memory.in_cache else trace.cycles_beyond
    alone = (own + BLOCK_CYCLES + _WARP_CYCLES * warps) / card.clock_hz * 1e6
    # The last round is a whole one; of many rounds, blocks that end early have made it up.
    rounds = waves if waves > 4 else float(-(-blocks // (cores * held)))
    last = alone * (trace.longest - 1) if waves <= 4 else 0.0
    bounds = {
        "memory": memory.dram / (DRAM_SHARE * card.bytes_s) * 1e6,
        "L2": memory.l2 / (card.l2_cycle_bytes * cores * card.clock_hz) * 1e6,
        "latency": alone * rounds + last,
        **dict(_units(trace, card, busiest * warps, memory.l2 / (blocks * warps))),
    }
    power = _POWER - 2 * (_POWER - _MIXED_POWER) * memory.mixed
    together = sum(each**power for each in bounds.values()) ** (1 / power)
    loads = trace.loaded_bytes * warps * resident
    return LaunchPrediction(
        time_us=LAUNCH_US + together,
        bound=max(bounds, key=lambda name: bounds[name]),
        bounds_us=bounds,
        waves=waves,
        busy=min(1.0, blocks / cores),
        resident=resident,
        dram_bytes=memory.dram,
        l2_bytes=memory.l2,
        in_flight=loads / max(1.0, trace.waits),
        needed=card.bytes_s * card.latencies.dram / card.clock_hz / cores,
        waits=trace.waits,
    )


def _units(trace: LaunchTrace, card: Card, warps: int, warp_bytes: float) -> Iterator[tuple[str, float]]:
    """Yield the µs that each unit of the busiest multiprocessor works for so many warps."""
    rates = {**_RATES, **_FEW_FP64, **_OF_CHIPS.get(card.chip, {})}
    us = 1e6 / card.clock_hz
    for name, count in trace.units.items():
        cycles = count if name == "lsu" else 32 * count / rates[name]
        yield name, warps * cycles * us
    yield "L2 port", warps * warp_bytes / _SECTOR_CYCLE_BYTES * us
    for precision, flops in trace.flops.items():
        if (peak := card.peaks.get(precision)) is not None:
            yield f"{precision} products", warps * flops / (TENSOR_SHARE * peak / card.multiprocessors) * 1e6


@dataclass(frozen=True)
class _Memory:
    dram: float
    l2: float
    in_cache: bool  # what a thread loads again is in the L2 cache
    mixed: float  # share of the loads or the stores, whichever is less

    @classmethod
    def of(cls, trace: LaunchTrace, card: Card, waves: float) -> "_Memory":
        cache = _CACHED * (card.l2_mib << 20)
        round_bytes = sum(_once(use, waves) for use in trace.memory)
        in_cache = round_bytes <= cache
        dram = 0.0
        for use in trace.memory:
            moved = use.loaded + use.stored
            once = moved / use.again
            if use.size and once > use.size:  # blocks load what others have loaded
                fits = use.size <= cache
                once = use.size if fits else max(use.size, min(once * use.apart, use.size * waves))
            dram += once if in_cache or (use.size and use.size <= cache) else min(moved, once * use.again)
        loaded, stored = (
            (sum(way) for way in zip(*((u.loaded, u.stored) for u in trace.memory), strict=True))
            if trace.memory
            else (0.0, 0.0)
        )
        mixed = min(loaded, stored) / (loaded + stored) if loaded + stored else 0.0
        repeated = sum(_found_in_l1(use, card) for use in trace.memory)
        return cls(dram, loaded + stored - repeated, in_cache, mixed)


def _found_in_l1(use: MemoryUse, card: Card) -> float:
    """Bytes of a small tensor that other blocks have loaded into the multiprocessors' own caches."""
    if not 0 < use.size <= IN_L1:
        return 0.0
    return max(0.0, use.loaded - use.size * card.multiprocessors)


def _once(use: MemoryUse, waves: float) -> float:
    """Bytes of a tensor that one round of blocks touches."""
    touched = (use.loaded * use.apart + use.stored) / use.again / waves
    return min(touched, use.size) if use.size else touched


@dataclass(frozen=True)
class CallPrediction:
    """Predicted time of a call: launches and torch's calls, one after the other.

    `torch_us`: of torch's calls, by their bytes and FLOPs alone; `left`: launches without a prediction.
    """

    launches: tuple[tuple[Launched, LaunchPrediction], ...]
    torch_us: float
    left: tuple[str, ...]

    @property
    def time_us(self) -> float:
        return self.torch_us + sum(launch.launches * found.time_us for launch, found in self.launches)


def of_torch(call: TorchCall, card: Card) -> float:
    """Return the µs of a call of torch's: a well-made kernel's, by its bytes and FLOPs.

    Products of fp32 operands are in fp32, as torch has them by default. Raises Unavailable.
    """
    if card.bytes_s is None:
        raise Unavailable(f"of {card.name} no bandwidth is stated")
    memory = call.moved_bytes / (DRAM_SHARE * card.bytes_s) * 1e6
    peak = card.peaks.get(call.precision) or card.peaks.get("fp32", 0.0)
    products = call.flops / (TENSOR_SHARE * peak) * 1e6 if call.flops and peak else 0.0
    return LAUNCH_US + max(memory, products)


def predicted_call(
    launches: Sequence[Launched], torch_calls: Sequence[TorchCall], card: Card
) -> CallPrediction:
    """Predict a call. Raises Unavailable for a card without a bandwidth."""
    torch_us = sum(of_torch(call, card) for call in torch_calls)
    found, left = [], []
    for launch in launches:
        try:
            found.append((launch, predicted(launch, card)))
        except Unavailable as error:
            left.append(f"{launch.name}: {error}")
    return CallPrediction(tuple(found), torch_us, tuple(left))


def bound_in_words(found: LaunchPrediction, card: Card) -> str:
    """Say what a launch is bound by, in a phrase: "latency: 24% of 132 SMs have a block"."""
    if found.bound == "latency":
        if found.busy < 1:
            return f"latency: {found.busy:.0%} of {card.multiprocessors} SMs have a block"
        return f"latency: {found.in_flight / 1024:.0f} KiB in flight an SM, {found.needed / 1024:.0f} needed"
    return "memory bandwidth" if found.bound == "memory" else found.bound
