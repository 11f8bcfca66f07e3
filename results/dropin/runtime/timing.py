"""Timing of a kernel in its wrapper against its reference, eager and compiled, forward and backward.

A custom operator is a barrier to fusion and may slow a compiled model down, so the whole is timed.
"""

import copy
import ctypes
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from .device import TYPE, finished
from .kernel import DropInKernel

_ROUNDS = 15
_BLOCK_S = 0.02
_UNUSUAL = 0.01  # share of a block's time; the referee's
_RESAMPLES = 1000
Call = Callable[[], Any]


def keep_memory() -> None:
    """Make this process keep freed memory, if glibc allocates it.

    Otherwise each call may get memory from the system again, or none may, depending on its neighbours; page
    faults then cost more than a kernel. Both sides are timed so, as they are where kernels are verified.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((-4, 0), (-1, -1), (-8, 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX
            mallopt(parameter, value)


def timed(kernel: DropInKernel) -> dict[str, dict[str, float]]:
    """Return what `versus` does, by mode."""
    stock = kernel.stock().to(TYPE)
    inputs = [each.like(torch.Generator().manual_seed(0)) for each in kernel.inputs]
    own = dict(stock.named_parameters()) | dict(stock.named_buffers())
    given = [*inputs, *(own[name] for name in kernel.parameters)]
    found = {}

    def calls(reference: Callable[..., Any], drop_in: Callable[..., Any]) -> tuple[Call, Call]:
        return _call(reference, inputs), _call(drop_in, given)

    with torch.no_grad():
        found["forward"] = versus(*calls(stock, kernel))
        found["forward, compiled"] = versus(*calls(*_compiled(stock, kernel)))
    if kernel.trainable:
        for each, differentiated in zip(inputs, kernel.differentiated, strict=False):
            each.requires_grad_(differentiated)
        wanted = [each for each in given if each.requires_grad]
        found["training"] = versus(*(_step(call, wanted) for call in calls(stock, kernel)))
        compiled = calls(*_compiled(stock, kernel))
        found["training, compiled"] = versus(*(_step(call, wanted) for call in compiled))
    return found


def _compiled(*functions: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Compile each function from scratch.

    What a function was compiled for before counts: after eight times torch gives up with a warning and calls
    it uncompiled.
    """
    torch.compiler.reset()
    return [torch.compile(each) for each in functions]


def inside(
    model: nn.Module, inputs: Sequence[Any], apply: Callable[[nn.Module], Any]
) -> dict[str, dict[str, float]]:
    """Time a whole model as it is and after `apply`, like `timed`; errors of `apply` propagate."""
    dropped = copy.deepcopy(model)
    apply(dropped)
    found = {}
    both = (model, dropped)
    compiled = _compiled(*both)
    with torch.no_grad():
        found["forward"] = versus(*(_call(each, inputs) for each in both))
        found["forward, compiled"] = versus(*(_call(each, inputs) for each in compiled))
    if any(each.requires_grad for each in model.parameters()):
        found["training"] = versus(*(_trained(each, inputs) for each in both))
        found["training, compiled"] = versus(*(_trained(each, inputs) for each in compiled))
    return found


def versus(reference: Call, drop_in: Call) -> dict[str, float]:
    """Return medians over the undisturbed rounds, in µs; their ratio with its 95% interval; peak memory.

    `busy` is 1 where other work disturbed more rounds than are left out.
    """
    rounds = alternately(reference, drop_in)
    kept, busy = undisturbed(rounds)
    seconds = [(each.reference.seconds, each.drop_in.seconds) for each in kept]
    low, high = _interval(seconds)
    reference_s, drop_in_s = _medians(seconds)
    return {
        "reference_us": 1e6 * reference_s,
        "drop_in_us": 1e6 * drop_in_s,
        "speedup": reference_s / drop_in_s,
        "speedup_low": low,
        "speedup_high": high,
        "busy": int(busy),
        "reference_peak_bytes": peak_bytes(reference),
        "drop_in_peak_bytes": peak_bytes(drop_in),
    }


def peak_bytes(call: Call) -> int:
    """Return the most memory that tensors allocated in a call hold at one time.

    A kernel's own C++ allocations, if it has any, are not among them. A profiler looks on, so drop-ins are
    called as operators, which copy what is laid out otherwise.
    """
    call()
    if TYPE == "cuda":
        finished()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        finished()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = seen.profiler.kineto_results.events()
    changes = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
    return max(accumulate((change for _, change in changes), initial=0))


@dataclass(frozen=True)
class WaitedBlock:
    """Seconds of a call, and the share of the time in which threads of this process waited for a CPU."""

    seconds: float
    waited: float


@dataclass(frozen=True)
class BlockPair:
    """A block of each side, one after the other."""

    reference: WaitedBlock
    drop_in: WaitedBlock


def alternately(reference: Call, drop_in: Call) -> list[BlockPair]:
    """Measure both, block by block in turn."""
    counts = [_count(call) for call in (reference, drop_in)]
    return [
        BlockPair(*(_block(call, count) for call, count in zip((reference, drop_in), counts, strict=True)))
        for _ in range(_ROUNDS)
    ]


def undisturbed(rounds: Sequence[BlockPair]) -> tuple[list[BlockPair], bool]:
    """Return the rounds in which neither side waited unusually, at least half; and whether fewer did not."""
    usual = [statistics.median(each.waited for each in side) for side in _sides(rounds)]
    unusual = [
        max(abs(block.waited - most) for block, most in zip(pair, usual, strict=True))
        for pair in zip(*_sides(rounds), strict=True)
    ]
    half, calm = -(-len(rounds) // 2), sum(each <= _UNUSUAL for each in unusual)
    best = sorted(range(len(rounds)), key=unusual.__getitem__)[: max(calm, half)]
    return [rounds[at] for at in sorted(best)], calm < half


def _sides(rounds: Sequence[BlockPair]) -> tuple[list[WaitedBlock], list[WaitedBlock]]:
    return [each.reference for each in rounds], [each.drop_in for each in rounds]


def _medians(seconds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(each for each, _ in seconds), statistics.median(each for _, each in seconds)


def _interval(seconds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the ratio of medians, over pairs of blocks."""
    draw = random.Random(0)
    ratios = []
    for _ in range(_RESAMPLES):
        reference_s, drop_in_s = _medians(draw.choices(seconds, k=len(seconds)))
        ratios.append(reference_s / drop_in_s)
    ratios.sort()
    return ratios[int(0.025 * _RESAMPLES)], ratios[int(0.975 * _RESAMPLES)]


def _count(call: Call) -> int:
    for _ in range(3):
        call()
    return max(1, int(_BLOCK_S / max(1e-7, _block(call, 3).seconds)))


def _block(call: Call, count: int) -> WaitedBlock:
    finished()
    waited_s, began = -_waited_s(), time.perf_counter()
    for _ in range(count):
        call()
    finished()
    took_s = time.perf_counter() - began
    return WaitedBlock(took_s / count, (waited_s + _waited_s()) / took_s)


def _waited_s() -> float:
    """Seconds that threads of this process were ready to run and found no CPU free; 0 if not counted."""
    total_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[1])
        except (OSError, IndexError):  # it has ended; or the kernel does not count
            continue
    return 1e-9 * total_ns


def _call(function: Callable[..., Any], given: Sequence[Any]) -> Call:
    return lambda: function(*given)


def _trained(model: Callable[..., Any], given: Sequence[Any]) -> Call:
    def step() -> None:
        found = model(*given)
        made = found if isinstance(found, tuple | list) else (found,)
        sum(each.square().mean() for each in made if each.requires_grad).backward()

    return step


def _step(call: Call, wanted: Sequence[torch.Tensor]) -> Call:
    def step() -> Any:
        found = call()
        made = [each for each in (found if isinstance(found, tuple) else (found,)) if each.requires_grad]
        return torch.autograd.grad(made, wanted, [torch.ones_like(each) for each in made])

    return step
