"""Sample of a wrong output: which indices have wrong elements, and some thousands of elements in full."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernelwright.kernelbench.evaluator.correctness.budget import Expected
from kernelwright.kernelbench.evaluator.correctness.comparison import wrong_elements
from kernelwright.kernelbench.evaluator.memory.blocks import Block
from kernelwright.kernelbench.evaluator.reference.float64 import is_discrete

# Chosen by hand.
FEW = 8  # elements, or distinct values of them, fewer of which show no pattern
NEARLY_ALL = 0.95  # share of the elements for which a pattern has to hold
_BLOCK = 1 << 20  # elements that are looked at at a time
_SAMPLED = 1 << 11  # wrong elements, about, and as many of all: below what torch starts threads for
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Index = tuple[torch.Tensor, ...]  # of several elements, by dimension


@dataclass(frozen=True)
class WrongSample:
    """Wrong elements of an output.

    `within`: for each dimension a mask of the indices at which there is one. `wrong` and `every`: flattened
    indices of some wrong elements, and of some of all, ascending. `first`, `last`: of all wrong ones.
    `unwritten`: how many hold what the worker fills fresh memory with (all bits set, of floating numbers).
    """

    shape: tuple[int, ...]
    count: int
    within: tuple[torch.Tensor, ...]
    wrong: torch.Tensor
    every: torch.Tensor
    first: int
    last: int
    unwritten: int

    @classmethod
    def of(cls, expected: Expected, actual: torch.Tensor) -> "WrongSample":
        """Sample an output of at least one dimension."""
        shape = tuple(actual.shape)
        chance = torch.Generator().manual_seed(0)  # at random, for a regular sample may miss a regular fault
        within = [torch.zeros(size, dtype=torch.bool) for size in shape]
        most = max(64, _SAMPLED * _BLOCK // max(actual.numel(), _BLOCK))  # of a block
        kept, count, unwritten, first, last = [], 0, 0, -1, -1
        for at, mask in wrong_elements(expected, actual, _BLOCK):
            found = mask.reshape(-1).nonzero().squeeze(1)
            if not found.numel():
                continue
            for d, known in enumerate(within):
                others = [other for other in range(mask.dim()) if other != d]
                hit = mask.any(dim=others) if others else mask
                known[at[d] if d < len(at) else slice(None)] |= hit.cpu()
            ends = _flattened(found[[0, -1]].cpu(), mask.shape, at, shape).tolist()
            first, last = ends[0] if first < 0 else first, ends[1]
            count += found.numel()
            unwritten += _unwritten(actual[at], mask)
            if found.numel() > most:
                found = found[torch.randint(found.numel(), (most,), generator=chance).to(found.device)]
            kept.append(_flattened(found.cpu().unique(), mask.shape, at, shape))
        wrong = torch.cat(kept) if kept else torch.empty(0, dtype=torch.int64)
        if len(wrong) > _SAMPLED:
            wrong = wrong[torch.randperm(len(wrong), generator=chance)[:_SAMPLED].sort().values]
        every = torch.randint(actual.numel(), (_SAMPLED,), generator=chance).unique()
        return cls(shape, count, tuple(within), wrong, every, first, last, unwritten)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def index_of(flat: torch.Tensor, shape: Sequence[int]) -> Index:
    """Return the index by dimension of flattened ones."""
    found = []
    for size in reversed(shape):
        found.append(flat % size)
        flat = flat // size
    return tuple(reversed(found))


def flat_of(index: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """Return flattened indices: `index_of` the other way round."""
    flat = torch.zeros_like(index[0])
    for each, size in zip(index, shape, strict=True):
        flat = flat * size + each
    return flat


def _flattened(found: torch.Tensor, block: Sequence[int], at: Block, shape: Sequence[int]) -> torch.Tensor:
    """Flattened indices of the whole output, of those of a block of it."""
    begins = [part.start for part in at] + [0] * (len(shape) - len(at))
    inside = index_of(found, block)
    return flat_of([each + begin for each, begin in zip(inside, begins, strict=True)], shape)


def _unwritten(actual: torch.Tensor, wrong: torch.Tensor) -> int:
    if not actual.is_floating_point() or not bool((suspect := wrong & actual.isnan()).any()):
        return 0
    return int((actual[suspect].view(_BITS[actual.element_size()]) == -1).sum())


class Elements:
    """Expected and found values of some elements, and by how much they may differ; on the CPU, in float64."""

    def __init__(self, expected: Expected, actual: torch.Tensor, index: Index) -> None:
        at = tuple(part.to(actual.device) for part in index)
        point = expected.at(at)
        self.index = index
        self.found = actual[at].double().cpu()
        self.wanted = point.exact.double().cpu()
        self.error = self.found - self.wanted
        whole = is_discrete(expected.reference.dtype)
        self.tolerance = torch.zeros_like(self.error) if whole else point.tolerance().cpu()
        # What values that are off by something are rounded by, beyond what the expected ones are.
        self.rounding = (
            torch.zeros_like(self.error) if whole else self.found.abs() * torch.finfo(actual.dtype).eps
        )
        self.finite = self.found.isfinite() & self.wanted.isfinite()

    def hold(self, right: torch.Tensor) -> bool:
        """Return True if a pattern holds for nearly all elements, and these are not too few."""
        return len(right) >= FEW and float(right.double().mean()) >= NEARLY_ALL
