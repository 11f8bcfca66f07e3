"""Timing of a kernel in its wrapper against its reference, eager and compiled, forward and backward.

A custom operator is a barrier to fusion and may slow a compiled model down, so the whole is timed.
"""

import copy
import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from .device import TYPE, finished
from .kernel import DropInKernel

_ROUNDS = 15
_BLOCK_S = 0.02
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
    """Return medians over alternating blocks, in µs, of both, their ratio, and peak memory."""
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
    medians = alternately({"reference_us": reference, "drop_in_us": drop_in})
    return {
        **medians,
        "speedup": medians["reference_us"] / medians["drop_in_us"],
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


def alternately(calls: Mapping[str, Call]) -> dict[str, float]:
    """Return the median µs a call of each, measured block by block in turn."""
    counts = {name: _count(call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            seconds[name].append(_block(call, counts[name]))
    return {name: 1e6 * statistics.median(each) for name, each in seconds.items()}


def _count(call: Call) -> int:
    for _ in range(3):
        call()
    return max(1, int(_BLOCK_S / max(1e-7, _block(call, 3))))


def _block(call: Call, count: int) -> float:
    finished()
    began = time.perf_counter()
    for _ in range(count):
        call()
    finished()
    return (time.perf_counter() - began) / count


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
