"""Comparison of an output with its error budget, element by element."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kernelwright.kernelbench.evaluator.correctness.budget import FAR, Expected, a_few, comparable, real
from kernelwright.kernelbench.evaluator.correctness.row_errors import fusible
from kernelwright.kernelbench.evaluator.correctness.ties import allowed
from kernelwright.kernelbench.evaluator.memory.blocks import Block, row_blocks
from kernelwright.kernelbench.evaluator.memory.native import library
from kernelwright.kernelbench.evaluator.reference.float64 import is_discrete


@dataclass(frozen=True)
class Comparison:
    """`error` in units of the budget, infinite where the outputs cannot be compared; `detail` says where.

    `few`: whether so few elements are beyond their budgets that it may be chance. `far`: how many are so
    far beyond that they may be on the other side of a jump.
    """

    error: float
    detail: str
    few: bool = False
    far: int = 0


def compare(expected: Expected, actual: torch.Tensor) -> Comparison:
    """Compare an output of the right shape and dtype against its budget.

    Few elements, of those that are far beyond it, may have values that the reference gives for moved inputs,
    once these are known: `Expected.across`.
    """
    actual = real(actual)
    if is_discrete(expected.reference.dtype):
        bad = _differing(expected, actual)
        far = int(bad.sum())
        if not far:
            return Comparison(0.0, "")
        return Comparison(math.inf, _said(far, _first(bad, ()), actual, expected), far=far)
    fused = _fused_error(expected, actual)
    if fused is not None:
        return Comparison(fused, "")
    largest = [_largest(expected.part(at), actual[at]) for at in row_blocks(actual.shape)]
    if all(worst <= 1.0 for worst in largest):  # False for NaN
        return Comparison(max(largest), "")
    blocks = [_Block.of(expected.part(at), actual[at], at) for at in row_blocks(actual.shape)]
    excused = sum(block.excused for block in blocks) <= expected.few
    found = [block.others if excused else block.every for block in blocks]
    worst = max(each.worst for each in found)
    if worst <= 1.0:
        return Comparison(worst, "")
    beyond = sum(each.beyond for each in found)
    first = next(each.first for each in found if each.first is not None)
    few = beyond <= a_few(actual)
    return Comparison(worst, _said(beyond, first, actual, expected), few, sum(each.far for each in found))


def wrong_elements(
    expected: Expected, actual: torch.Tensor, most: int
) -> Iterator[tuple[Block, torch.Tensor]]:
    """Yield masks of the elements beyond their budgets, without those that a jump explains.

    In blocks of rows of `most` elements. `actual`: with `real` parts only.
    """
    if is_discrete(expected.reference.dtype):
        differing = _differing(expected, actual)
        yield from ((at, differing[at]) for at in row_blocks(actual.shape, most))
        return
    for at in row_blocks(actual.shape, most):
        part = expected.part(at)
        error = _error(part, actual[at].double())
        wrong = error > 1.0
        yield at, wrong & ~_excused(part, actual[at].double(), error) if part.between else wrong


def _differing(expected: Expected, actual: torch.Tensor) -> torch.Tensor:
    """Mask of the discrete values that are wrong."""
    found = comparable(actual)
    bad = (found != comparable(expected.exact.to(actual.dtype))) & (found != comparable(expected.reference))
    if expected.rankings and bool(bad.any()):
        bad &= ~allowed(expected.rankings, actual, expected.reference)
    if expected.between and bool(bad.any()):
        seen = torch.zeros_like(bad)
        for other in expected.between:
            seen |= found == comparable(other)
        bad = _buta_few(bad, seen, expected.few)
    return bad


def _error(expected: Expected, value: torch.Tensor) -> torch.Tensor:
    """Return the errors of a block of rows in budgets; infinite where NaN or an infinity is wrong."""
    exact, reference = expected.exact, expected.reference.double()
    error = (value - exact).abs_().div_(expected.tolerance())
    # Where the reference itself overflows or is undefined, its pattern counts, or the exact value, which is
    # infinite in the output's precision if it is too large for that.
    same = torch.isnan(reference) & torch.isnan(value) | (torch.isinf(reference) & (value == reference))
    rounded = exact.to(expected.reference.dtype).double()
    same |= (value == exact) | (value == rounded) | (torch.isnan(exact) & torch.isnan(value))
    return torch.where(same, 0.0, error).nan_to_num_(nan=math.inf)


def _excused(expected: Expected, value: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Mask of the elements of a block that are on the other side of a jump."""
    least, largest = expected.between
    room = expected.tolerance()
    return (error > FAR) & (value >= least - room) & (value <= largest + room)


def _largest(expected: Expected, actual: torch.Tensor) -> float:
    """Return the largest error of a block of rows; NaN where there is any."""
    error = (actual.double() - expected.exact).abs_().div_(expected.tolerance())
    return float(error.max()) if error.numel() else 0.0


@dataclass(frozen=True)
class _Beyond:
    """Elements of a block beyond their budgets: how many, how many of them far, and where the first is."""

    worst: float
    beyond: int
    far: int
    first: tuple[int, ...] | None

    @classmethod
    def of(cls, error: torch.Tensor, at: Block) -> "_Beyond":
        beyond = error > 1.0
        first = _first(beyond, at) if bool(beyond.any()) else None
        return cls(float(error.max()), int(beyond.sum()), int((error > FAR).sum()), first)


@dataclass(frozen=True)
class _Block:
    """Errors of a block of rows: of all elements, and without the `excused` ones, which a jump explains."""

    every: _Beyond
    others: _Beyond
    excused: int

    @classmethod
    def of(cls, expected: Expected, actual: torch.Tensor, at: Block) -> "_Block":
        value = actual.double()
        error = _error(expected, value)
        every = _Beyond.of(error, at)
        if not expected.between:
            return cls(every, every, 0)
        excused = _excused(expected, value, error)
        return cls(every, _Beyond.of(torch.where(excused, 0.0, error), at), int(excused.sum()))


def _buta_few(bad: torch.Tensor, excused: torch.Tensor, few: int) -> torch.Tensor:
    """Mask of bad elements without the excused ones; with them if more than `few` are excused."""
    excused = bad & excused
    return bad & ~excused if int(excused.sum()) <= few else bad


def _fused_error(expected: Expected, actual: torch.Tensor) -> float | None:
    """Return the largest error in one pass; None if that does not apply or some element is suspect."""
    native = library("rows")
    if native is None or expected.by_column or not fusible(actual, expected.exact, expected.spread):
        return None
    rows, columns = actual.numel() // actual.shape[-1], actual.shape[-1]
    found = torch.empty(2, dtype=torch.float64)
    exact, spread, relative = expected.exact, expected.spread, expected.relative
    native.worst_error(actual, exact, spread, relative, rows, columns, found)
    worst, beyond = found.tolist()
    return worst if not beyond else None


def _first(bad: torch.Tensor, at: Block) -> tuple[int, ...]:
    """Return the index in the whole tensor of the first bad element of a block."""
    begins = [part.start for part in at] + bad.dim() * [0]
    flat = int(bad.reshape(-1).int().argmax())
    return tuple(int(i) + begin for i, begin in zip(np.unravel_index(flat, bad.shape), begins, strict=False))


def _said(count: int, first: tuple[int, ...], actual: torch.Tensor, expected: Expected) -> str:
    got, wanted = actual[first].item(), expected.exact[first].item()
    digits = next((d for d in (6, 9) if f"{got:.{d}g}" != f"{wanted:.{d}g}"), 17)
    allowance = ""
    if not is_discrete(expected.reference.dtype):
        allowance = f" (allowed difference {expected.at(first).tolerance().item():.2g})"
    return (
        f"{count} of {actual.numel()} elements differ, first at {list(first)}: "
        f"{got:.{digits}g}, not {wanted:.{digits}g}{allowance}"
    )
