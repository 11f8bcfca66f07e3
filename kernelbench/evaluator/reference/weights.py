"""Weights of a reference, and their variation: a kernel is to compute with those that it is given."""

import math
from collections.abc import Collection

import torch
from torch import nn

from kernelwright.kernelbench.evaluator.reference.float64 import is_eight_bit_float
from kernelwright.kernelbench.evaluator.reference.matching import is_constant

_NOISE = 0.2  # of a weight's size
_FLIPS = 1 / 16  # of the elements of a weight of both signs, whose signs change at least
_STATISTICS = ("running_mean", "running_var")
_LEARNED = ("weight", "bias", "gamma", "beta", "scale")  # how names of buffers end that are frozen weights


def possible_weights(model: nn.Module) -> list[str]:
    """Names of buffers that may be weights, by their type, where others are constants or statistics."""
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return [
        name
        for name, value in model.state_dict().items()
        if name not in trained
        and value.is_floating_point()
        and value.layout is torch.strided
        and not name.endswith(_STATISTICS)
    ]


def vary(model: nn.Module, weights: Collection[str], statistics: bool = True) -> None:
    """Move weights off what the constructor sets, by a fifth or so, and running `statistics`.

    Weights of both signs, or with zeros among them, change some signs and have no zeros afterwards; weights
    of one sign keep it, for they may be under a logarithm. So a kernel that ignores the weights that it is
    given, keeps what it computed from them in its constructor, or relies on how they are initialised (an
    identity, zeros) computes something else then. Whole numbers that are not trained may be indices, and
    stay.
    """
    seen: set[int] = set()
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
                continue
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if name.endswith(_STATISTICS) and name not in weights:
                if statistics and name.endswith("running_var"):
                    tensor.uniform_(0.5, 1.5)
                elif statistics:
                    tensor.normal_(0, 0.2)
            elif name in weights and (tensor.requires_grad or not _may_be_indices(tensor)):
                parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                parts.copy_(_moved(parts))


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """Values of about the same size, in at least float32. What is not finite stays as it is."""
    values = tensor.detach()
    if values.dtype.itemsize < 4:
        values = values.float()
    finite = values.isfinite()
    whole = bool(finite.all())  # then nothing is copied out, which would take most of the time
    known = values if whole else values[finite]
    if not known.numel():
        return values
    low, high = (float(each) for each in known.aminmax())
    if low > 0 or high < 0:
        coarse = torch.finfo(tensor.dtype).eps >= 1  # powers of two
        moved = values * torch.empty_like(values).uniform_(*((0.4, 2.5) if coarse else (0.7, 1.3)))
    elif low == high:  # zeros
        moved = torch.empty_like(values).normal_(0, _NOISE)
    else:
        size = float(torch.linalg.vector_norm(known, dtype=torch.float64)) / math.sqrt(known.numel())
        moved = torch.randn_like(values).mul_(_NOISE * size).add_(values)
        if low < 0 and int(((moved.sign() != values.sign()) & finite).sum()) < _FLIPS / 2 * known.numel():
            # Such as 1 and -1, which are further from zero than the noise.
            flips = torch.rand_like(values) < _FLIPS
            flips.view(-1)[torch.randint(flips.numel(), ())] = True
            moved = torch.where(flips, -moved, moved)
    limits = torch.finfo(tensor.dtype)
    moved = moved.clamp_(limits.min, limits.max)
    return moved if whole else torch.where(finite, moved, values)


def is_frozen(name: str, buffer: torch.Tensor) -> bool:
    """Return True if a buffer is one number a channel, as in a new norm, and named like a weight."""
    if not name.endswith(_LEARNED) or not buffer.numel() == max(buffer.shape, default=0) > 1:
        return False
    return is_constant(buffer) and float(buffer.reshape(-1)[0]) in (0.0, 1.0)


def _may_be_indices(tensor: torch.Tensor) -> bool:
    """Return True for different whole numbers, such as indices or bits of a mask."""
    if is_eight_bit_float(tensor.dtype) or tensor.is_complex() or is_constant(tensor):
        return False
    return bool((tensor == tensor.round()).all())
