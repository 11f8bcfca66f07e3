"""Peak of torch's matrix products, on any device."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from kernelwright.kernelbench.evaluator.timing.ceilings import best_seconds

_SIZE_S = 0.15  # about, for the products of one size; a size of which one takes longer is left out
_REPEATS = 4, 40  # at least, and at most
_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}

Product = Callable[[int], Callable[[], object]]


class Rate(NamedTuple):
    flops_s: float
    path: str  # whose code, and which instructions


def product_of(precision: str, device: torch.device) -> Product:
    """Return a function that prepares a product of square matrices of a given size.

    int8 is `torch._int_mm`, which adds up in int32.
    """
    dtype = _DTYPES[precision]
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

    def make(size: int) -> Callable[[], object]:
        if dtype is torch.int8:
            bytes_a, bytes_b = torch.randint(-127, 128, (2, size, size), dtype=dtype, device=device)
            return lambda: torch._int_mm(bytes_a, bytes_b)
        a, b = torch.rand(2, size, size, device=device).to(dtype)
        product = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=product)

    return make


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
