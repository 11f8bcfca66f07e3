"""Agreement of two runs of a reference: whether they gave the same, and how far one is off."""

from collections.abc import Sequence

import torch

from kernelwright.kernelbench.evaluator.memory.blocks import MOST, row_blocks
from kernelwright.kernelbench.evaluator.reference.float64 import LEAST_ULPS

OFF = 0.05  # of the outputs' spread: an error of the reference's own that hides what is computed
_FEW_VALUES = 16  # elements of an output; their spread is their size
_REPEATED = 4.0  # roundings of the largest value, by which two runs on the same inputs may differ


def share_off(reference: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the share of the elements that differ by more than a small part of the exact outputs' spread.

    And by more than the ulps that every budget allows: nothing is seen of what lies between two bfloat16.
    Large outputs are sampled.
    """
    reference, exact = _thinned(reference), _thinned(exact)
    if not reference.numel() or not (reference.is_floating_point() or reference.is_complex()):
        return 0.0
    if reference.is_complex():
        reference, exact = torch.view_as_real(reference.resolve_conj()), torch.view_as_real(exact)
    error = (reference.double() - exact).abs()
    known = error.isfinite() & exact.isfinite()
    if not bool(known.any()):
        return 0.0
    values = exact[known]
    around = values - values.mean() if values.numel() >= _FEW_VALUES else values
    spread = float(around.square().mean().sqrt())
    rounding = LEAST_ULPS * torch.finfo(reference.dtype).eps * exact.abs()
    return float((error[known] > rounding[known].clamp(min=OFF * spread)).double().mean())


def _thinned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without most of its rows where it has more elements than a block."""
    for dim in range(tensor.dim()):
        step = min(tensor.shape[dim], -(-tensor.numel() // MOST))
        if step > 1:
            tensor = tensor[(slice(None),) * dim + (slice(None, None, step),)]
    return tensor


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Return True if two runs gave the same, but for the order in which sums are taken."""
    for a, b in zip(left, right, strict=True):
        if not a.numel():
            continue
        if not (a.is_floating_point() or a.is_complex()):
            if not bool((a != b).double().mean() <= 1e-3):
                return False
            continue
        eps = max(torch.finfo(a.dtype).eps, 16 * torch.finfo(torch.float32).eps)
        blocks = list(row_blocks(a.shape))
        largest = max(float(double(a[at]).abs().nan_to_num(0, 0, 0).max()) for at in blocks)
        for at in blocks:
            apart = (double(a[at]) - double(b[at])).abs().nan_to_num(0, 0, 0)
            if bool((apart > _REPEATED * eps * largest).any()):
                return False
    return True


def double(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor
