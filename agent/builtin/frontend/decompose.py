"""Decomposition of composite ATen operations into pointwise operations and reductions.

The table is passed to `torch.export`; what it decomposes, the fusion can express, what it keeps stays one
call of the library. A normalisation becomes a `var_mean` with pointwise work around it, so that nothing in
the fusion knows the name of a normalisation.
"""

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

# Operations with a fast library kernel, and pointwise ones that have an expression of their own.
_KEPT = """
linear matmul mm bmm addmm baddbmm addbmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d convolution max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
scaled_dot_product_attention einsum embedding upsample_nearest2d upsample_bilinear2d lstm gru rnn_tanh pad
cumsum cumprod silu hardswish hardsigmoid mish softplus elu leaky_relu hardtanh gelu hardshrink softshrink
relu6 sigmoid tanh rsqrt logit
"""
KEPT = frozenset(_KEPT.split())


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    exp = torch.exp(x - torch.amax(x, [dim], True))
    return exp * torch.reciprocal(torch.sum(exp, [dim], True))  # the sum is at least 1


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    shifted = x - torch.amax(x, [dim], True)
    return shifted - torch.log(torch.sum(torch.exp(shifted), [dim], True))


def mean(x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    if dtype is not None:
        x = x.to(dtype)
    dims = list(range(x.dim())) if not dim else list(dim)
    count = math.prod(x.shape[d] for d in dims)
    return torch.sum(x, dims, keepdim) / count


def mean_all(x: Tensor, *, dtype: Any = None) -> Tensor:
    return mean(x, None, False, dtype=dtype)


def layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    var, average = torch.var_mean(x, dims, correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    y = (x - average) * rstd
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y, average, rstd


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    grouped = x.reshape(N, group, C // group, HxW)
    var, average = torch.var_mean(grouped, [2, 3], correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    y = (grouped - average) * rstd
    if weight is not None:
        y = y * weight.view(1, group, C // group, 1)
    if bias is not None:
        y = y + bias.view(1, group, C // group, 1)
    return y.reshape(x.shape), average.view(N, group), rstd.view(N, group)


def _normalise_channels(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batch statistics per channel, dimension 1. Returns y, mean, 1/std, var (biased), each of [C]."""
    channels = x.shape[1]
    per_channel = [1, channels] + [1] * (x.dim() - 2)
    dims = [d for d in range(x.dim()) if d != 1]
    var, average = torch.var_mean(x, dims, correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    y = (x - average) * rstd
    if weight is not None:
        y = y * weight.view(per_channel)
    if bias is not None:
        y = y + bias.view(per_channel)
    return y, average.view(channels), rstd.view(channels), var.view(channels)


def batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _normalise_channels(x, weight, bias, eps)[:3]


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if not training:
        y, none, _ = batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps)
        return y, none, none, running_mean, running_var
    y, average, rstd, var = _normalise_channels(x, weight, bias, eps)
    count = x.numel() // x.shape[1]
    new_mean = running_mean * (1 - momentum) + average * momentum
    new_var = running_var * (1 - momentum) + var * (momentum * count / max(count - 1, 1))
    return y, average, rstd, new_mean, new_var


def batch_norm_inference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    per_channel = [1, x.shape[1]] + [1] * (x.dim() - 2)
    rstd = torch.rsqrt(running_var + eps)
    y = (x - running_mean.view(per_channel)) * rstd.view(per_channel)
    if weight is not None:
        y = y * weight.view(per_channel)
    if bias is not None:
        y = y + bias.view(per_channel)
    return y, running_mean[:0], rstd[:0]


def vector_norm(
    x: Tensor, ord: float = 2, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    dims = list(range(x.dim())) if dim is None else list(dim)
    if ord == 2:
        return torch.sqrt(torch.sum(x * x, dims, keepdim))
    if ord == 1:
        return torch.sum(torch.abs(x), dims, keepdim)
    if ord == math.inf:
        return torch.amax(torch.abs(x), dims, keepdim)
    return torch.pow(torch.sum(torch.pow(torch.abs(x), ord), dims, keepdim), 1.0 / ord)


def variance(
    x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    dims = list(range(x.dim())) if not dim else list(dim)
    return torch.var_mean(x, dims, correction=1 if correction is None else correction, keepdim=keepdim)[0]


def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    y = -torch.nn.functional.softplus(-x, threshold=40)  # from where on doubles do not tell the difference
    return y, torch.empty_like(x[:0])


def rms_norm(x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    rstd = torch.rsqrt(mean(x * x, dims, True) + (torch.finfo(x.dtype).eps if eps is None else eps))
    y = x * rstd
    return (y if weight is None else y * weight), rstd


def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Without a tensor of zeros to write into: the class says which element of its row is not one."""
    if x.dim() != 2:
        return NotImplemented
    if reduction == 1:  # the mean
        grad = grad / total_weight
    counts = target != ignore_index
    wanted = torch.where(counts, target, 0)
    if weight is not None:
        grad = grad * weight[wanted]
    grad = torch.where(counts, grad, 0)
    places = torch.arange(x.shape[1], dtype=torch.int32, device=x.device)
    return torch.where(places == wanted.to(torch.int32)[:, None], -grad[:, None], 0)


def slice_backward(
    grad: Tensor, sizes: list[int], dim: int, start: int | None, end: int | None, step: int
) -> Tensor:
    """Return a concatenation with zeros; a sum of several becomes one of their parts."""
    if step != 1:
        return NotImplemented
    first = _place(0 if start is None else start, sizes[dim])
    return _between_zeros(grad, sizes, dim, first)


def select_backward(grad: Tensor, sizes: list[int], dim: int, index: int) -> Tensor:
    return _between_zeros(grad.unsqueeze(dim), sizes, dim, _place(index, sizes[dim]))


def _place(index: int, size: int) -> int:
    return max(0, min(index + size if index < 0 else index, size))


def _between_zeros(grad: Tensor, sizes: list[int], dim: int, first: int) -> Tensor:
    """Return a tensor of `sizes`, of zeros but for `grad`, which begins at `first` along `dim`."""
    dim %= len(sizes)
    lengths = (first, sizes[dim] - first - grad.shape[dim])
    before, after = (grad.new_zeros([*sizes[:dim], size, *sizes[dim + 1 :]]) for size in lengths)
    parts = [part for part in (before, grad, after) if part.shape[dim]]
    return torch.cat(parts, dim) if len(parts) > 1 else grad.clone()


@functools.cache  # a tenth of a second; operators that are registered later stay as they are
def table() -> Mapping[Any, Callable[..., Any]]:
    """Return the decomposition table for `ExportedProgram.run_decompositions`."""
    found: dict[Any, Callable[..., Any]] = torch.export.default_decompositions()
    for op in list(found):
        if op._opname in KEPT:
            del found[op]
    found.update(
        {
            aten._softmax.default: softmax,
            aten._log_softmax.default: log_softmax,
            aten.mean.dim: mean,
            aten.mean.default: mean_all,
            aten.native_layer_norm.default: layer_norm,
            aten.native_group_norm.default: group_norm,
            aten._native_batch_norm_legit_functional.default: batch_norm,
            aten._native_batch_norm_legit_no_training.default: batch_norm_inference,
            aten._native_batch_norm_legit.no_stats: batch_norm_no_stats,
            aten.linalg_vector_norm.default: vector_norm,
            aten.var.correction: variance,
            aten.log_sigmoid_forward.default: log_sigmoid,
            aten._fused_rms_norm.default: rms_norm,
            aten.nll_loss_backward.default: nll_loss_backward,
            aten.slice_backward.default: slice_backward,
            aten.select_backward.default: select_backward,
        }
    )
    return MappingProxyType(dict(found))
