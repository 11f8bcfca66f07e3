"""Comparison of an output with its error budget, element by element."""

import math
from dataclasses import dataclass

import torch

from kernelwright.kernelbench.evaluator.correctness.budget import FAR, Expected, a_few, fusible
from kernelwright.kernelbench.evaluator.correctness.ties import allowed
from kernelwright.kernelbench.evaluator.memory.native import library


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
    exact = expected.exact
    if actual.is_complex():
        actual = torch.view_as_real(actual)
    if not expected.reference.is_floating_point():
        bad = (actual != exact.to(actual.dtype)) & (actual != expected.reference)
        if expected.rankings and bool(bad.any()):
            bad &= ~allowed(expected.rankings, actual, expected.reference)
        if expected.between and bool(bad.any()):
            seen = torch.stack([actual == other for other in expected.between]).any(0)
            bad = _buta_few(bad, seen, expected.few)
        far = int(bad.sum())
        return Comparison(math.inf, _where(bad, actual, exact), far=far) if far else Comparison(0.0, "")
    fused = _fused_error(expected, actual)
    if fused is not None:
        return Comparison(fused, "")
    value = actual.double()
    error = (value - exact).abs_().div_(expected.tolerance())
    worst = float(error.max()) if error.numel() else 0.0
    if worst <= 1.0:  # False for NaN
        return Comparison(worst, "")
    # Where the reference itself overflows or is undefined, its pattern counts, or the exact value.
    reference = expected.reference.double()
    same = torch.isnan(reference) & torch.isnan(value) | (torch.isinf(reference) & (value == reference))
    same |= (value == exact) | (torch.isnan(exact) & torch.isnan(value))
    error = torch.where(same, 0.0, error).nan_to_num_(nan=math.inf)
    if expected.between:
        least, largest = expected.between
        room = expected.tolerance()
        seen = (value >= least - room) & (value <= largest + room)
        far = error > FAR
        error = torch.where(far & ~_buta_few(far, seen, expected.few), 0.0, error)
    worst = float(error.max())
    if worst <= 1.0:
        return Comparison(worst, "")
    beyond = error > 1.0
    few = int(beyond.sum()) <= a_few(beyond)
    return Comparison(worst, _where(beyond, actual, exact), few, int((error > FAR).sum()))


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


def _where(bad: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor) -> str:
    first = tuple(int(i[0]) for i in torch.nonzero(bad, as_tuple=True)) if bad.dim() else ()
    got, wanted = actual[first].item(), exact[first].item()
    return (
        f"{int(bad.sum())} of {bad.numel()} elements differ, "
        f"first at {list(first)}: {got:.6g}, not {wanted:.6g}"
    )
