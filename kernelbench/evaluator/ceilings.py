"""Worker entry that measures what this machine can do at best."""

import time
from collections.abc import Callable

import torch

from kernelbench.evaluator.channel import Channel

_CALLS_ON_GPU = 20


def best_seconds(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Of a call, the best of `repeats`; on a GPU of many calls in a graph, for a launch costs as much."""
    call()
    if device.type == "cuda":
        return min(_graph_seconds(call, device) for _ in range(repeats)) / _CALLS_ON_GPU
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _graph_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Of _CALLS_ON_GPU calls in one CUDA graph."""
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


def _copy_bytes_s(total_bytes: int, device: torch.device) -> float:
    """Read plus write bandwidth of a copy whose two sides together take `total_bytes`."""
    source = torch.rand(total_bytes // 8, device=device)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / best_seconds(lambda: target.copy_(source), 12, device)


def serve(channel: Channel) -> None:
    """Answers "describe" with what a GPU is, "measure" with the fields of `records.Ceilings`."""
    while True:
        message, _ = channel.receive_json()
        device = torch.device(message["device"])
        if device.type == "cuda" and message["do"] == "measure":
            torch.cuda.set_device(device)
        if message["do"] == "describe":
            channel.send_json(_described(device))
        else:
            channel.send_json(_measured(message["last_level_cache_bytes"], device))


def _measured(cache: int, device: torch.device) -> dict[str, float]:
    size = 1536 if device.type == "cpu" else 8192
    a, b = torch.rand(2, size, size, device=device)
    product = torch.empty_like(a)
    copy = _copy_bytes_s(8 * cache, device)
    return {
        "copy_bytes_s": copy,
        "cached_copy_bytes_s": max(copy, _copy_bytes_s(max(1 << 20, cache // 8), device)),
        "fp32_flops_s": 2 * size**3 / best_seconds(lambda: torch.mm(a, b, out=product), 6, device),
    }


def _described(device: torch.device) -> dict[str, object]:
    if not torch.cuda.is_available():
        return {"error": "torch finds no GPU here"}
    if (device.index or 0) >= torch.cuda.device_count():
        return {"error": f"there are only {torch.cuda.device_count()} GPUs"}
    try:
        import cuda.bindings.driver  # noqa: F401 - what the evaluator needs

        found = torch.cuda.get_device_properties(device)
    except (ImportError, RuntimeError, AssertionError) as error:
        return {"error": str(error)}
    return {
        "chip": found.name,
        "memory_bytes": found.total_memory,
        "cache_bytes": found.L2_cache_size,
        "capability": f"sm_{found.major}{found.minor}",
        "cuda": torch.version.cuda,
    }
