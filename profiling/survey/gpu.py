"""Ceilings of a GPU, measured with torch's own operators: no kernel is built for it.

Not measured: barriers and atomic additions, for which torch has no operator that does nothing else.
"""

import time
from collections.abc import Callable

import torch

from kernelwright.kernelbench.evaluator.timing.ceilings import best_seconds
from kernelwright.kernelbench.evaluator.timing.products import product_of
from kernelwright.profiling.survey.products import Rate, best_flops_s
from kernelwright.profiling.survey.records import Kind

_REPEATS = 4
_SIZES = (2048, 4096, 8192)  # of matrices
_CALLS = 200  # fewer than a stream queues before it makes the program wait


class GpuBench:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def bandwidth(self, kind: Kind, working_set_bytes: int, streaming: bool) -> float:
        """Return bytes/s; the arrays together take `working_set_bytes`. `streaming` has no effect."""
        arrays = {"copy": 2, "read": 1, "triad": 3}[kind]
        count = working_set_bytes // arrays // 4
        a, b, c = (torch.ones(count if n < arrays else 0, device=self._device) for n in range(3))
        calls: dict[Kind, Callable[[], object]] = {
            "copy": lambda: b.copy_(a),
            "read": lambda: a.sum(),
            "triad": lambda: torch.add(a, b, alpha=0.5, out=c),
        }
        return arrays * count * 4 / best_seconds(calls[kind], _REPEATS, self._device)

    def matmul(self, precision: str) -> Rate:
        product = product_of(precision, self._device)
        return Rate(best_flops_s(product, _SIZES, self._device), "torch's libraries")

    def vector_units(self, precision: str) -> Rate | None:
        """Return None: no loop of our own is built for GPUs."""
        return None

    def overhead(self, name: str) -> float | None:
        """Return the overhead in seconds."""
        return min(_OVERHEADS[name](self._device) for _ in range(_REPEATS))


def _enqueued(device: torch.device) -> float:
    """Return the seconds of a launch for a program that does not wait for the kernel."""
    one = torch.ones(1, device=device)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(_CALLS):
        one.neg_()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize(device)
    return seconds / _CALLS


def _awaited(device: torch.device) -> float:
    one = torch.ones(1, device=device)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(_CALLS):
        one.neg_()
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / _CALLS


def _in_graph(device: torch.device) -> float:
    """Return the seconds of one kernel that a graph replays, its share of the graph's start included."""
    one = torch.ones(1, device=device)
    return best_seconds(one.neg_, 1, device)


def _events(device: torch.device) -> float:
    """Return the seconds between two events around no work at all."""
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    second.record()
    torch.cuda.synchronize(device)
    return first.elapsed_time(second) / 1e3


_OVERHEADS: dict[str, Callable[[torch.device], float]] = {
    "torch operator, enqueued": _enqueued,
    "torch operator, awaited": _awaited,
    "small kernel in a CUDA graph": _in_graph,
    "pair of events": _events,
}
