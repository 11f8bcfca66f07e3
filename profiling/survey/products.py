"""Peak of torch's matrix products, on any device."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kernelwright.kernelbench.evaluator.timing.ceilings import best_seconds
from kernelwright.kernelbench.evaluator.timing.products import Product

_SIZE_S = 0.15  # about, for the products of one size; a size of which one takes longer is left out
_REPEATS = 4, 40  # at least, and at most


class Rate(NamedTuple):
    flops_s: float
    path: str  # whose code, and which instructions


def best_flops_s(product: Product, sizes: Sequence[int], device: torch.device) -> float:
    """Return the FLOP/s of the best of these ascending sizes; those that would take too long are left out."""
    best = 0.0
    for size in sizes:
        flops = 2 * size**3
        if best and flops / best > _SIZE_S:
            break
        fewest, most = _REPEATS
        on_cpu = device.type == "cpu"  # where what else runs is in the way
        repeats = min(most, max(fewest, int(_SIZE_S * best / flops))) if on_cpu else fewest
        best = max(best, flops / best_seconds(product(size), repeats, device))
    return best
