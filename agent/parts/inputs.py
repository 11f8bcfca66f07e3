"""Inputs of a part, as Python that makes tensors like those that the submodule gets in the whole."""

import torch
from torch import Tensor

from kernelwright.agent.builtin.ir.graph import Meta

_ALIKE = 4.0  # standard deviations within this factor of 1, which are not scaled
_MANY_ZEROS = 0.1


def input_text(value: Tensor, meta: Meta, with_dtype: bool) -> str | None:
    """Return the expression; None for values that no random numbers stand for.

    `meta` has the strides. `with_dtype`: write one other than torch's default.
    """
    shape = list(meta.shape)
    order = sorted(range(len(shape)), key=lambda axis: -meta.strides[axis])  # as it lies in memory
    dense = Meta(
        shape=tuple(shape[axis] for axis in order),
        dtype=meta.dtype,
        strides=tuple(meta.strides[axis] for axis in order),
    ).contiguous
    laid = [shape[axis] for axis in order] if dense and not meta.contiguous else shape
    size = ", ".join(map(str, laid))
    text = _values(value, size)
    if text is None:
        return None
    usual = "float32" if value.is_floating_point() else "bool" if value.dtype is torch.bool else "int64"
    if meta.dtype != usual and (with_dtype or not value.is_floating_point()):
        text = f"({text}).to(torch.{meta.dtype})"
    if meta.contiguous:
        return text
    if dense:
        back = sorted(range(len(order)), key=lambda axis: order[axis])
        return f"({text}).permute({', '.join(map(str, back))})"
    if 0 in meta.strides:
        return None
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, meta.strides, strict=True))
    laid_out = f".as_strided({tuple(shape)}, {meta.strides})"
    return f"({text.replace(size, str(extent), 1)}){laid_out}"


def _values(value: Tensor, size: str) -> str | None:
    if not value.numel():
        return None
    if value.dtype == torch.bool:
        return f"torch.rand({size}) < {value.float().mean().item():.2g}"
    if value.is_complex() or not bool(torch.isfinite(value).all()):
        return None
    least, most = (end.item() for end in value.aminmax())
    if not value.is_floating_point():
        if value.dim() == 1 and torch.equal(value.cpu(), torch.arange(value.numel()).to(value.dtype).cpu()):
            return f"torch.arange({value.numel()})"
        return f"torch.randint({int(least)}, {int(most) + 1}, ({size},))"
    values = value.double()
    if least == most:
        return f"torch.full(({size},), {float(least)!r})"
    deviation, mean = values.std().item(), values.mean().item()
    if least >= 0:
        zeros = (value == 0).double().mean().item()
        kind = f"torch.randn({size}).relu()" if zeros > _MANY_ZEROS else f"torch.rand({size})"
        usual = 0.58 if zeros > _MANY_ZEROS else 0.29  # deviation of these
        return _scaled(kind, deviation / usual, 0.0)
    return _scaled(f"torch.randn({size})", deviation, mean if abs(mean) > deviation / 2 else 0.0)


def _scaled(text: str, factor: float, offset: float) -> str:
    if not 1 / _ALIKE <= factor <= _ALIKE:
        text += f" * {factor:.2g}"
    return f"{text} + {offset:.2g}" if offset > 0 else f"{text} - {-offset:.2g}" if offset else text
