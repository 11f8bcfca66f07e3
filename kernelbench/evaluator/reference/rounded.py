"""Detection of products whose operands have a lower precision than the declared one.

Where all operands are positive, as `torch.rand` draws them, the rounding errors of a long product average
out: one of 4096 terms with TF32 operands is off by 6e-6, which plain fp32 loops may be too. The two differ
not in the size of the errors but in what they are. The reference runs once more with the operands of all its
matrix products and convolutions rounded; that moves its outputs by some shift r. A candidate's errors e
against float64 follow r, with a slope <e, r> / <r, r> of 1, if it has rounded the same operands, of about 1/2
if one of two, of a tenth if it has done so for a tenth of the elements, whatever else they hold. Errors of
sums in fp32 have nothing to do with r: their slope is 0.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode

# Of mantissas, by precision: TF32 and fp16, bf16. Of a task's own, those of its float32 products.
BITS: Mapping[str, tuple[int, ...]] = {"fp32": (10, 7), "task": (10, 7)}
FORMATS = {10: "TF32 or fp16", 7: "bf16"}
# Chosen by hand, so that a tenth of the elements with rounded operands is found (a slope of 0.1) and sums in
# another order are not.
_SLOPE = 0.08  # slope of the errors on the shift, from which on they are taken for its
_CORRELATION = 0.25  # correlation of errors and shift, the least
_CHANCE = 5.0  # standard deviations of the correlation of unrelated errors, the least
_NOISY = 4.0  # multiple of the reference's own error, below which a shift says nothing
_LEAST = 1.5  # multiple of the reference's own error, below which a candidate's is not examined
_FEWEST = 32  # elements of an output, below which it is not examined

# Which of its arguments an operator multiplies with each other; the rest are biases.
_OPERANDS = {
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2),
    "addmv": (1, 2), "convolution": (0, 1), "_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
    "_scaled_dot_product_flash_attention": (0, 1, 2), "_scaled_dot_product_efficient_attention": (0, 1, 2),
    "_scaled_dot_product_cudnn_attention": (0, 1, 2),
}  # fmt: skip


class RoundedProducts(OperatorMode):
    """Within it products and convolutions read operands rounded to `bits` of mantissa; None: as they are."""

    def __init__(self, bits: int | None) -> None:
        super().__init__()
        self.bits = bits
        self.products = 0  # of float32 operands

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = _OPERANDS.get(func._opname, ())
        if places and args[places[0]].dtype is torch.float32:
            self.products += 1
            if self.bits is not None:
                args = tuple(
                    rounded(value, self.bits) if place in places else value
                    for place, value in enumerate(args)
                )
        return func(*args, **(kwargs or {}))


def rounded(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Return a float32 tensor with mantissas of so many bits, to nearest, ties to even."""
    dropped = 23 - bits
    pattern = tensor.contiguous().view(torch.int32)
    odd = (pattern >> dropped) & 1
    found = ((pattern + ((1 << dropped - 1) - 1) + odd) >> dropped << dropped).view(torch.float32)
    return torch.where(tensor.isfinite(), found, tensor)


Parts = Iterable[tuple[torch.Tensor, ...]]  # blocks of an output's errors, and of what goes with them


def unlike_the_reference(parts: Parts) -> bool:
    """Return True if errors are so large, beside the reference's own, that their origin is in question.

    `parts`: blocks of both.
    """
    elements, energy, own = 0, 0.0, 0.0
    for block in parts:
        errors, reference = (values.nan_to_num(0.0, 0.0, 0.0).flatten() for values in block)
        elements += errors.numel()
        energy, own = energy + float(errors @ errors), own + float(reference @ reference)
    return elements >= _FEWEST and math.sqrt(energy) > _LEAST * math.sqrt(own)


def follows(parts: Parts) -> bool:
    """Return True if a candidate's errors are those of a shift.

    `parts`: blocks of the errors, of the shift and of the reference's errors, all in units of the tolerance.
    Products have as few independent errors as their operands have rows; significance is computed from that.
    """
    elements = 0
    energy = common = fourth = size = noise = 0.0
    for block in parts:
        finite = torch.stack([values.isfinite() for values in block]).all(0)
        errors, shift, own = (torch.where(finite, values, 0.0).flatten() for values in block)
        squares = shift * shift
        elements += shift.numel()
        energy, fourth = energy + float(squares.sum()), fourth + float(squares @ squares)
        common, size = common + float(errors @ shift), size + float(errors @ errors)
        noise += float(own @ own)
    if energy == 0.0 or math.sqrt(energy) < _NOISY * math.sqrt(noise):
        return False
    correlation = common / math.sqrt(energy) / max(math.sqrt(size), 1e-300)
    effective = energy**2 / fourth  # of many, how many matter
    independent = max(1.0, min(effective, 2 * math.sqrt(elements)))
    needed = max(_CORRELATION, min(0.95, _CHANCE / math.sqrt(independent)))
    return common / energy > _SLOPE and correlation > needed
