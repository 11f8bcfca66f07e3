"""Worker entry that measures what this machine can do at best."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.timing.products import product_of
from kernelwright.kernelbench.records import ProductPrecision

# Chosen by hand.
_CALLS_ON_GPU = 20  # calls in one CUDA graph
_ON_CPU_S, _FEWEST = 0.3, 4  # seconds of all repeats of one measurement, and their number, at least
_REPEAT_S = 0.01  # seconds of one repeat at least: shorter ones hardly show other work on the machine
_CACHES, _LEAST_CACHES = 8, 3  # multiples of the last-level cache that a copy moves: wanted, and at least
_SMALLEST_BYTES = 256 << 20  # of such a copy, where memory allows: a last-level cache may not be told of
_MOST_BYTES = 4 << 30  # of such a copy
_PRODUCTS: dict[str, tuple[ProductPrecision, ...]] = {  # by device
    "cpu": ("fp32", "bf16", "fp16"),
    "cuda": ("fp32", "tf32", "bf16", "fp16", "fp8", "int8"),
}
_CPU_SIZE, _TRIAL_SIZE = 1536, 256  # of matrices: of tens of ms a product in fp32, and of less than one
_GPU_SIZE, _GPU_SIZE_FP32 = 8192, 4096  # of matrices: of 1 to 3 ms a product on an H100
_REPEATS = 6


def best_seconds(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Best seconds of a call among `repeats`; on a GPU of many in a graph, as a launch costs as much."""
    call()
    if device.type == "cuda":
        return min(_graph_seconds(call, device) for _ in range(repeats)) / _CALLS_ON_GPU
    return min(_seconds(call, 1)[0] for _ in range(repeats))


def _seconds(call: Callable[[], object], times: int) -> tuple[float, float]:
    """Seconds of one of so many calls, and the share that this process's threads waited for a CPU."""
    waited_s, start = -_waited_s(), time.perf_counter()
    for _ in range(times):
        call()
    took_s = time.perf_counter() - start
    return took_s / times, (waited_s + _waited_s()) / took_s


def _waited_s() -> float:
    """Seconds that threads of this process were ready to run and found no CPU free, all threads together."""
    total_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[1])
        except (OSError, IndexError):  # it has ended; or the kernel does not count
            continue
    return 1e-9 * total_ns


def _graph_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of _CALLS_ON_GPU calls in one CUDA graph."""
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS_ON_GPU):
            call()
    graph.replay()
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize(device)
    return time.perf_counter() - start


class Measured:
    """A rate at its best, and how much others were in the way when it was."""

    def __init__(self, amount: float, call: Callable[[], object], repeats: int, device: torch.device) -> None:
        """`amount`: of bytes or FLOPs in a call."""
        self.disturbed: float | None = None  # share of the best repeat that threads waited for a CPU
        if device.type == "cuda":
            self.rate = amount / best_seconds(call, repeats, device)
            return
        call()
        times = max(1, int(_REPEAT_S / _seconds(call, 1)[0]))
        found: list[tuple[float, float]] = []
        until = time.perf_counter() + _ON_CPU_S
        while len(found) < _FEWEST or (len(found) < repeats and time.perf_counter() < until):
            found.append(_seconds(call, times))
        seconds, self.disturbed = min(found)
        self.rate = amount / seconds


def _copied(total_bytes: int, device: torch.device) -> Measured | None:
    """Return the bytes a second, of both sides, of a copy of `total_bytes`; None without memory."""
    try:
        source = torch.ones(total_bytes // 8, device=device)  # by all threads, each near its own memory
        target = torch.ones_like(source)
    except RuntimeError:  # DefaultCPUAllocator: can't allocate memory; on a GPU OutOfMemoryError
        return None
    return Measured(2.0 * 4 * source.numel(), lambda: target.copy_(source), 12, device)


def _multiplied(precision: ProductPrecision, device: torch.device) -> Measured | None:
    """Return the FLOP/s of a large product; None where torch has none, or too little memory for it."""
    size = _CPU_SIZE if device.type == "cpu" else _GPU_SIZE_FP32 if precision == "fp32" else _GPU_SIZE
    try:
        if device.type == "cpu" and precision != "fp32" and not _faster_than_fp32(precision, device):
            return None
        return Measured(2.0 * size**3, product_of(precision, device)(size), _REPEATS, device)
    except (RuntimeError, AttributeError):
        return None


def _faster_than_fp32(precision: ProductPrecision, device: torch.device) -> bool:
    """Return True if small products are faster in this precision than in fp32, on one thread.

    A CPU without instructions for it may take seconds for a large one. Several threads would wait for each
    other where the machine is busy, which hides the difference.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        own_s, fp32_s = (
            best_seconds(product_of(name, device)(_TRIAL_SIZE), _REPEATS, device)
            for name in (precision, "fp32")
        )
    finally:
        torch.set_num_threads(threads)
    return own_s < fp32_s


def serve(channel: Channel) -> None:
    """Answers "measure" with the fields of `records.Ceilings`."""
    while True:
        message, _ = channel.receive_json()
        device = torch.device(message["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        cache, most = message["last_level_cache_bytes"], message["most_bytes"]
        channel.send_json(_measured(cache, most, device))


def _measured(cache: int, most_bytes: int, device: torch.device) -> dict[str, float | None]:
    """Measured ceilings; None for those that could not be. `most_bytes`: the largest copy."""
    beyond = min(max(_CACHES * cache, _SMALLEST_BYTES), most_bytes, _MOST_BYTES)
    inside = min(max(1 << 20, cache // 8), most_bytes)
    found = {
        "copy_bytes_s": _copied(beyond, device) if beyond >= _LEAST_CACHES * cache else None,
        "cached_copy_bytes_s": _copied(inside, device),
    }
    found |= {f"{name}_flops_s": _multiplied(name, device) for name in _PRODUCTS[device.type]}
    rates = {name: None if one is None else one.rate for name, one in found.items()}
    copy, cached = rates["copy_bytes_s"], rates["cached_copy_bytes_s"]
    if copy is not None and cached is not None:
        rates["cached_copy_bytes_s"] = max(copy, cached)
    waits = [one.disturbed for one in found.values() if one is not None and one.disturbed is not None]
    return rates | {"disturbed": max(waits, default=None)}
