"""Plain sums: long sums of the reference taken as a plain loop takes them, one element after the other.

torch adds in a cascade, whose error hardly grows with the number of elements. A loop's does, with its
square root where terms are of both signs: over a million normal numbers by 2e-5 of the sum's usual size,
which is more than the budget of a sum that happens to be small. Compilers do not reorder such loops without
-ffast-math. Where all terms are equal they round the same way each time: 2^20 times 0.1 is 104857.6, and

>>> with PlainSums() as loops:
...     total = torch.full((1 << 20,), 0.1).sum()
>>> f"{total.item():.2f}", loops.taken
('105891.84', 1)

One loop may be right by accident where another order of the same terms is not. So a sum is off by what a loop
from either end is, and no less than 1.5 times what the roundings of its K partial sums s_k put it off by on
average, which are independent:

    sigma = eps * sqrt(0.045 * (s_1^2 + ... + s_K^2))

since an error of rounding is uniform within half an ulp of either side, and an ulp is between eps / 2 and eps
of the number.

Of a running sum, whose terms come in one order, element k is off by what the loop is there, and no less than
by that of s_1 to s_k: up or down at random, for errors of one sign would cancel in a difference that follows.
torch adds these in double precision on a CPU; kernels, and torch on a GPU, do not.

Means, variances and norms are computed from such sums, and those within softmax, log_softmax and logsumexp. A
normalized element is x - mean, in which the mean's error counts for more the farther the mean is from zero:
in a layer norm of 768 numbers around 4 the mean of a loop is off by some 2e-6, and each element of the row
with it, by 20 of its ulps.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode

# All chosen by hand.
_LONG = 128  # terms of a sum; shorter ones are within the budget anyway
_MOST = 1 << 26  # elements of a tensor: 256 MiB of float32
_AT_ONCE = 1 << 20  # terms whose partial sums are held at a time
_AT_LEAST = 1.5  # sigma that a sum is off by: rows share a mean's error, and their budget is four times it
# Mean square of an error of rounding, in eps of the number: 1/12 of an ulp squared, ulps evenly by logarithm.
_MEAN_SQUARE = (3 / (8 * math.log(2))) / 12


class PlainSums(OperatorMode):
    """Operator mode in which long sums of float32 are taken in plain loops; `taken` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        plain = _PLAIN.get(func._opname)
        first = result[0] if isinstance(result, tuple | list) else result
        if plain is None or not isinstance(first, torch.Tensor):
            return result
        tensor = args[0]
        if tensor.dtype is not torch.float32 or first.dtype is not torch.float32:
            return result
        if not _LONG <= tensor.numel() <= _MOST:
            return result
        named = {
            argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
        } | kwargs
        found = plain(tensor, named)
        if found is None:
            return result
        self.taken += 1
        if not isinstance(result, tuple | list):
            return found[0].view(result.shape)
        shaped = [new.view(old.shape) for new, old in zip(found, result, strict=False)]
        return (*shaped, *result[len(shaped) :])


Arguments = dict[str, Any]
Results = Sequence[torch.Tensor]  # in place of the operator's first ones


def _dims(tensor: torch.Tensor, given: Any) -> list[int]:
    """Return the dimensions that an operator reduces; all of them where none is given."""
    given = [given] if isinstance(given, int) else given
    return sorted({dim % tensor.dim() for dim in given} if given else range(tensor.dim()))


def _count(tensor: torch.Tensor, dims: Sequence[int]) -> int:
    return math.prod(tensor.shape[dim] for dim in dims)


def _reduced(tensor: torch.Tensor, named: Arguments) -> list[int] | None:
    """Return the dimensions over which long sums are taken; None where those are short."""
    dims = _dims(tensor, named.get("dim"))
    return dims if _count(tensor, dims) >= _LONG else None


def _sum(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Sum over some dimensions, which stay with one element, in order."""
    kept = [dim for dim in range(tensor.dim()) if dim not in dims]
    terms = tensor.detach().permute(*dims, *kept).reshape(_count(tensor, dims), -1).cpu().numpy()
    shape = [1 if dim in dims else size for dim, size in enumerate(tensor.shape)]
    return torch.from_numpy(_in_order(terms)).to(tensor.device).view(shape)


def _in_order(terms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sum over the first of two dimensions, (K, N) to (N,), each as far off as a loop may be."""
    count, columns = terms.shape
    found = np.empty(columns, np.float32)
    step = max(1, _AT_ONCE // count)
    for start in range(0, columns, step):
        block = terms[:, start : start + step]
        exact = block.sum(axis=0, dtype=np.float64)
        error, squares = np.zeros_like(exact), np.zeros_like(exact)
        for ordered in (block, block[::-1]):
            partial = np.cumsum(ordered, axis=0, dtype=np.float32)
            own = partial[-1] - exact
            error = np.where(np.abs(own) > np.abs(error), own, error)
            squares = np.maximum(squares, np.einsum("ij,ij->j", partial, partial, dtype=np.float64))
        sigma = np.finfo(np.float32).eps * np.sqrt(_MEAN_SQUARE * squares)
        found[start : start + step] = exact + np.copysign(np.maximum(np.abs(error), _AT_LEAST * sigma), error)
    return found


def _running(tensor: torch.Tensor, named: Arguments) -> Results | None:
    """Running sums along a dimension, each as far off as a loop may be."""
    dim = named["dim"] % max(1, tensor.dim())
    if tensor.dim() == 0 or tensor.shape[dim] < _LONG:
        return None
    shape = tensor.movedim(dim, 0).shape
    terms = tensor.detach().movedim(dim, 0).reshape(shape[0], -1).cpu().numpy()
    found = torch.from_numpy(_all_in_order(terms)).to(tensor.device)
    return [found.view(shape).movedim(0, dim).contiguous()]


def _all_in_order(terms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Running sums along the first of two dimensions, (K, N) to (K, N), each as far off as a loop may be."""
    count, columns = terms.shape
    found, rng = np.empty_like(terms), np.random.default_rng(0)
    step = max(1, _AT_ONCE // count)
    for start in range(0, columns, step):
        block = terms[:, start : start + step]
        exact = np.cumsum(block, axis=0, dtype=np.float64)
        partial = np.cumsum(block, axis=0, dtype=np.float32)
        squares = np.cumsum(np.square(partial, dtype=np.float64), axis=0)
        sigma = np.finfo(np.float32).eps * np.sqrt(_MEAN_SQUARE * squares)
        error = np.maximum(np.abs(partial - exact), _AT_LEAST * sigma)
        found[:, start : start + step] = exact + error * rng.choice((-1.0, 1.0), error.shape)
    return found


def _moments(tensor: torch.Tensor, dims: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean, and sum of the squares of what is left without it."""
    mean = _sum(tensor, dims) / _count(tensor, dims)
    return mean, _sum((tensor - mean).square(), dims)


def _normalized(
    tensor: torch.Tensor,
    dims: Sequence[int],
    eps: float,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> list[torch.Tensor] | None:
    if _count(tensor, dims) < _LONG:
        return None
    mean, squares = _moments(tensor, dims)
    found = (tensor - mean) * (squares / _count(tensor, dims) + eps).rsqrt()
    found = found if weight is None else found * weight
    return [found if bias is None else found + bias]


def _layer_norm(tensor: torch.Tensor, named: Arguments) -> Results | None:
    dims = range(tensor.dim() - len(named["normalized_shape"]), tensor.dim())
    return _normalized(tensor, dims, named["eps"], named["weight"], named["bias"])


def _group_norm(tensor: torch.Tensor, named: Arguments) -> Results | None:
    groups, channels = named["group"], named["C"]
    grouped = tensor.reshape(named["N"], groups, channels // groups, -1)
    weight, bias = (
        None if named[name] is None else named[name].view(1, groups, -1, 1) for name in ("weight", "bias")
    )
    return _normalized(grouped, (2, 3), named["eps"], weight, bias)


def _batch_norm(tensor: torch.Tensor, named: Arguments) -> Results | None:
    if not named["training"]:
        return None
    shape = [1, -1, *[1] * (tensor.dim() - 2)]
    weight, bias = (None if named[name] is None else named[name].view(shape) for name in ("weight", "bias"))
    dims = [dim for dim in range(tensor.dim()) if dim != 1]
    eps = named["eps"] if "eps" in named else named["epsilon"]
    return _normalized(tensor, dims, eps, weight, bias)


def _variance(tensor: torch.Tensor, named: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    dims, correction = _reduced(tensor, named), named.get("correction")
    if dims is None:
        return None
    mean, squares = _moments(tensor, dims)
    return squares / max(_count(tensor, dims) - (1 if correction is None else correction), 0), mean


def _deviation(tensor: torch.Tensor, named: Arguments) -> Results | None:
    found = _variance(tensor, named)
    return None if found is None else [found[0].sqrt(), found[1]]


def _vector_norm(tensor: torch.Tensor, named: Arguments) -> Results | None:
    dims = _reduced(tensor, named)
    return None if dims is None or named.get("ord", 2) != 2 else [_sum(tensor.square(), dims).sqrt()]


def _over_dims(plain: Callable[[torch.Tensor, Sequence[int]], torch.Tensor]) -> "Plain":
    def take(tensor: torch.Tensor, named: Arguments) -> Results | None:
        dims = _reduced(tensor, named)
        return None if dims is None else [plain(tensor, dims)]

    return take


def _mean(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return _sum(tensor, dims) / _count(tensor, dims)


def _softmax(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    terms = (tensor - tensor.amax(dims, keepdim=True)).exp()
    return terms / _sum(terms, dims)


def _log_softmax(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return tensor - _logsumexp(tensor, dims)


def _logsumexp(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    largest = tensor.amax(dims, keepdim=True)
    return largest + _sum((tensor - largest).exp(), dims).log()


Plain = Callable[[torch.Tensor, Arguments], Results | None]

_PLAIN: dict[str, Plain] = {
    "sum": _over_dims(_sum),
    "cumsum": _running,
    "mean": _over_dims(_mean),
    "_softmax": _over_dims(_softmax),
    "_log_softmax": _over_dims(_log_softmax),
    "logsumexp": _over_dims(_logsumexp),
    "linalg_vector_norm": _vector_norm,
    "var": _variance,
    "var_mean": _variance,
    "std": _deviation,
    "std_mean": _deviation,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "cudnn_batch_norm": _batch_norm,
}
