"""Ties in rankings: torch promises no order of equal values, so any index of an equal value is right.

Holds for topk, unstable sort and argsort, kthvalue and median. argmax and max name the first, as torch
documents. The two largest of 3, 5, 5, 1 are at 1 and 2, in whatever order; an element may not be named twice:

>>> values, wanted = torch.tensor([[3.0, 5.0, 5.0, 1.0]]), torch.tensor([[1, 2]])
>>> ranking = Ranking(wanted, values, dim=1, distinct=True)
>>> ranking.allows(torch.tensor([[2, 1]]), wanted)
tensor([[True, True]])
>>> ranking.allows(torch.tensor([[2, 2]]), wanted)
tensor([[False, False]])
>>> ranking.allows(torch.tensor([[1, 0]]), wanted)
tensor([[ True, False]])
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode

_RANKS = ("topk", "sort", "kthvalue", "median")
_DISTINCT = ("topk", "sort")  # these name no element of a row twice


@dataclass(frozen=True)
class Ranking:
    """Result of a ranking operator: `indices` along `dim` of `values`."""

    indices: torch.Tensor
    values: torch.Tensor
    dim: int
    distinct: bool

    def allows(self, actual: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Mask of the elements where the values that `actual` and `wanted` name are equal."""
        size = self.values.shape[self.dim]
        legal = (actual >= 0) & (actual < size)
        chosen = torch.where(legal, actual, 0).long()
        if self.distinct:
            ordered = chosen.sort(self.dim).values
            legal = legal & (ordered.diff(dim=self.dim) != 0).all(self.dim, keepdim=True)
        return legal & (self.values.gather(self.dim, chosen) == self.values.gather(self.dim, wanted.long()))


class Rankings(OperatorMode):
    """Operator mode that records what operators rank."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[Ranking] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._opname
        if name in _RANKS and isinstance(result, (tuple, list)) and args[0].dim():
            given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
            given |= kwargs or {}
            if not given.get("stable"):
                self._note(name, args[0], result[1], given)
        return result

    def _note(self, name: str, values: torch.Tensor, indices: torch.Tensor, given: dict[str, Any]) -> None:
        dim = int(given.get("dim", -1)) % values.dim()
        if indices.dim() < values.dim():
            indices = indices.unsqueeze(dim)
        # Copies: what comes after may overwrite both.
        self._found.append(Ranking(indices.clone(), values.clone(), dim, name in _DISTINCT))

    def of(self, output: torch.Tensor) -> Ranking | None:
        """Ranking that an output is the indices of; None if it is none."""
        for ranking in self._found:
            if ranking.indices.numel() == output.numel() and torch.equal(
                ranking.indices, output.view_as(ranking.indices).to(ranking.indices.dtype)
            ):
                return ranking
        return None


def allowed(rankings: Sequence[Ranking], actual: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mask of indices that are right because they name an equal value, in at least one of the rankings."""
    right = torch.zeros_like(actual, dtype=torch.bool)
    for ranking in rankings:
        shape = ranking.indices.shape
        right |= ranking.allows(actual.reshape(shape), wanted.reshape(shape)).view_as(actual)
    return right
