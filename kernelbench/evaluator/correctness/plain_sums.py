"""Plain sums: long sums of the reference taken as a plain loop takes them, one element after the other.

torch adds in a cascade, whose error hardly grows with the number of elements. A loop's does, with its
square root where terms are of both signs: over a million normal numbers by 2e-5 of the sum's usual size,
which is more than the budget of a sum that happens to be small. Compilers do not reorder such loops without
-ffast-math. Where all terms are equal they round the same way each time: 2^20 times 0.1 is 104857.6, and

>>> with PlainSums() as loops:
...     total = torch.full((1 << 20,), 0.1).sum()
>>> f"{total.item():.2f}", loops.taken
('105891.84', 1)

The sums within softmax, log_softmax and logsumexp are taken so, too.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode

# Both chosen by hand.
_LONG = 4096  # terms of a sum; shorter ones are within the budget anyway
_MOST = 1 << 26  # elements of a tensor: 256 MiB of float32


class PlainSums(OperatorMode):
    """Operator mode in which long sums of float32 are taken in plain loops; `taken` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        plain = _PLAIN.get(func._opname)
        if plain is None or not isinstance(result, torch.Tensor):
            return result
        tensor = args[0]
        if tensor.dtype is not torch.float32 or result.dtype is not torch.float32:
            return result
        if not _LONG <= tensor.numel() <= _MOST:
            return result
        dims = _dims(tensor, args[1] if len(args) > 1 else kwargs.get("dim"))
        if math.prod(tensor.shape[dim] for dim in dims) < _LONG:
            return result
        self.taken += 1
        return plain(tensor, dims).view(result.shape)


def _dims(tensor: torch.Tensor, given: Any) -> list[int]:
    """Return the dimensions that an operator reduces; all of them where none is given."""
    given = [given] if isinstance(given, int) else given
    return sorted({dim % tensor.dim() for dim in given} if given else range(tensor.dim()))


def _sum(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Sum over some dimensions, which stay with one element, in order."""
    kept = [dim for dim in range(tensor.dim()) if dim not in dims]
    count = math.prod(tensor.shape[dim] for dim in dims)
    terms = tensor.permute(*dims, *kept).reshape(count, -1).cpu().numpy()
    shape = [1 if dim in dims else size for dim, size in enumerate(tensor.shape)]
    return torch.from_numpy(_in_order(np.ascontiguousarray(terms))).to(tensor.device).view(shape)


def _mean(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return _sum(tensor, dims) / math.prod(tensor.shape[dim] for dim in dims)


def _softmax(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    terms = (tensor - tensor.amax(dims, keepdim=True)).exp()
    return terms / _sum(terms, dims)


def _log_softmax(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return tensor - _logsumexp(tensor, dims)


def _logsumexp(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    largest = tensor.amax(dims, keepdim=True)
    return largest + _sum((tensor - largest).exp(), dims).log()


_PLAIN: dict[str, Callable[[torch.Tensor, Sequence[int]], torch.Tensor]] = {
    "sum": _sum,
    "mean": _mean,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
}


def _in_order(terms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sum over the first of two dimensions; numpy adds pairwise along contiguous ones only."""
    if terms.shape[1] == 1:
        return np.cumsum(terms[:, 0], dtype=np.float32)[-1:]
    return np.asarray(np.add.reduce(terms, axis=0, dtype=np.float32))
