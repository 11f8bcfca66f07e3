"""Moves of a reference's inputs and weights by an ulp or so, for what rounding them does to its outputs.

Integers and floats of eight bits are what they are: the next one is another number. What they are cast to is
moved instead, for a kernel may multiply by a scale before it sums, and round each product:

>>> weight = torch.tensor([1, -2, 3], dtype=torch.int8)
>>> with MovedCasts(rounding):
...     cast = weight.float()
>>> bool(((cast - weight).abs() <= weight.abs() * 2**-23).all()) and not torch.equal(cast, weight.float())
True
"""

from typing import Any, Protocol, Self

import torch

from kernelwright.kernelbench.evaluator.reference.float64 import is_eight_bit_float
from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode


class Factors(Protocol):
    """Draws factors for the elements of a tensor; None where it is not to be moved."""

    def __call__(
        self, tensor: torch.Tensor, generator: torch.Generator | None = None
    ) -> torch.Tensor | None: ...


def rounding(tensor: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor | None:
    """Factors 1 - eps/2 and 1 + eps, at random: down an ulp, or up one or two, in the tensor's precision.

    None for integers, and for formats too coarse for that.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()) or is_eight_bit_float(tensor.dtype):
        return None
    eps = torch.finfo(tensor.dtype).eps
    factors = torch.empty_like(tensor.real if tensor.is_complex() else tensor)
    return factors.bernoulli_(0.5, generator=generator).mul_(1.5 * eps).add_(1 - eps / 2)


def alike(
    tensor: torch.Tensor, generator: torch.Generator | None = None, *, ulps: float
) -> torch.Tensor | None:
    """Factors up to `ulps` off 1, at random, but the same for equal values: ties stay ties."""
    if not tensor.is_floating_point() or is_eight_bit_float(tensor.dtype):
        return None
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = (tensor.contiguous() + 0.0).view(whole).long()
    multiplier, offset = torch.randint(1 << 62, (2,), generator=generator, device=tensor.device).tolist()
    multiplier, offset = multiplier | 1, offset | 1
    bits = bits * multiplier + offset
    bits = (bits ^ (bits >> 29)) * multiplier
    share = ((bits >> 40) & 0xFFFF).double() / 0xFFFF
    return (1 + ulps * torch.finfo(tensor.dtype).eps * (2 * share - 1)).to(tensor.dtype)


def times(tensor: torch.Tensor, factors: torch.Tensor | None, into: bool) -> torch.Tensor:
    """Return the product, the tensor itself without factors; `into`: in the memory of the factors."""
    if factors is None:
        return tensor
    return factors.mul_(tensor) if into and factors.dtype is tensor.dtype else tensor * factors


def is_cast_to_compute(tensor: torch.Tensor) -> bool:
    """Return True for a number format of eight bits."""
    return tensor.dtype.itemsize == 1 and tensor.dtype is not torch.bool


class MovedCasts(OperatorMode):
    """Moves what is cast from eight bits to float32 or float64; in each run alike."""

    def __init__(self, factors_of: Factors) -> None:
        super().__init__()
        self._factors_of = factors_of
        self._seed = int(torch.randint(1 << 62, ()))  # the reference's own draws stay what they are
        self._generators: dict[torch.device, torch.Generator] = {}

    def __enter__(self) -> Self:
        self._generators = {}
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._opname != "_to_copy" or not is_cast_to_compute(args[0]):
            return result
        if result.dtype not in (torch.float32, torch.float64):
            return result
        if result.device not in self._generators:
            self._generators[result.device] = torch.Generator(result.device).manual_seed(self._seed)
        factors = self._factors_of(result, self._generators[result.device])
        return result if factors is None else result.mul_(factors)
