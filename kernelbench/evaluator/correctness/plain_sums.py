"""Plain sums: long sums of the reference taken as a plain loop takes them, one element after the other.

torch adds in a cascade, whose error hardly grows with the number of elements. A loop's does, with its
square root where terms are of both signs: over a million normal numbers by 2e-5 of the sum's usual size,
which is more than the budget of a sum that happens to be small. Compilers do not reorder such loops without
-ffast-math. Where all terms are equal they round the same way each time: 2^20 times 0.1 is 104857.6, and

>>> with PlainSums() as loops:
...     total = torch.full((1 << 20,), 0.1).sum()
>>> f"{total.item():.2f}", loops.taken
('105891.84', 1)
"""

from typing import Any

import numpy as np
import torch

from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode

# Both chosen by hand.
_LONG = 4096  # terms of a sum; shorter ones are within the budget anyway
_MOST = 1 << 26  # elements of a tensor: 256 MiB of float32


class PlainSums(OperatorMode):
    """Operator mode in which long sums and means of float32 are taken in plain loops; `taken` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._opname not in ("sum", "mean") or not isinstance(result, torch.Tensor):
            return result
        tensor = args[0]
        count = tensor.numel() // max(1, result.numel())
        if tensor.dtype is not torch.float32 or result.dtype is not torch.float32:
            return result
        if count < _LONG or tensor.numel() > _MOST:
            return result
        self.taken += 1
        given = args[1] if len(args) > 1 else (kwargs or {}).get("dim")
        dims = {int(dim) % tensor.dim() for dim in given} if given else set(range(tensor.dim()))
        kept = [dim for dim in range(tensor.dim()) if dim not in dims]
        terms = tensor.permute(*sorted(dims), *kept).reshape(count, -1).cpu().numpy()
        total = _sum(np.ascontiguousarray(terms)) / np.float32(count if func._opname == "mean" else 1)
        return torch.from_numpy(total).to(result.device).view(result.shape)


def _sum(terms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sum over the first of two dimensions, in order; numpy adds pairwise along contiguous ones only."""
    if terms.shape[1] == 1:
        return np.cumsum(terms[:, 0], dtype=np.float32)[-1:]
    return np.asarray(np.add.reduce(terms, axis=0, dtype=np.float32))
