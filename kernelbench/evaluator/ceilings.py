"""Worker entry that measures what this machine can do at best."""

import time
from collections.abc import Callable

import torch

from kernelbench.evaluator.channel import Channel


def _best_seconds(call: Callable[[], object], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _copy_bytes_s(total_bytes: int) -> float:
    """Read plus write bandwidth of a copy whose two sides together take `total_bytes`."""
    source = torch.rand(total_bytes // 8)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / _best_seconds(lambda: target.copy_(source), 12)


def serve(channel: Channel) -> None:
    message, _ = channel.receive_json()
    cache = message["last_level_cache_bytes"]
    size = 1536
    a, b = torch.rand(size, size), torch.rand(size, size)
    channel.send_json(
        {
            "copy_bytes_s": _copy_bytes_s(8 * cache),
            "cached_copy_bytes_s": _copy_bytes_s(max(1 << 20, cache // 8)),
            "fp32_flops_s": 2 * size**3 / _best_seconds(lambda: a @ b, 6),
        }
    )
