"""Error budgets from float64, and the comparison against them.

The budget of an output element is

    tolerance = max(16 * rms(r, s), 4 * max(r, s)) + ulps(K) * eps * |expected|

with eps of the declared precision; r the reference's own error and s 0.6 times the reference's error on
inputs and weights moved by an ulp or so (rounding once moves them by half of one: the conditioning that
no algorithm escapes), both over the element's row (the last dimension); and ulps(K) =
max(8, 2 K^(1/4)), where K is the number of input elements per output element, since honest sums are
taken in another order. Errors are reported in units of the tolerance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernelbench.evaluator.native import library

RMS_FACTOR, MAX_FACTOR = 16.0, 4.0
DISTURBED = 0.6  # of the spread of what was computed from moved inputs


@dataclass(frozen=True)
class Expected:
    """One output: the float64 result, the reference's result in its own precision, and its budget.

    The tolerance is `spread` + `relative` * |exact|; the spread has one element a row.
    """

    exact: torch.Tensor
    reference: torch.Tensor
    spread: torch.Tensor
    relative: float

    def tolerance(self) -> torch.Tensor:
        return self.exact.abs().mul_(self.relative).add_(self.spread)


def expect(
    exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor], fan_in: float
) -> Expected:
    """The budget of one output. `disturbed`: the reference's results for moved inputs; `fan_in`: K above."""
    if reference.is_complex():
        exact, reference = torch.view_as_real(exact), torch.view_as_real(reference)
        disturbed = [torch.view_as_real(other) for other in disturbed]
    if not reference.is_floating_point():
        return Expected(exact, reference, torch.zeros(()), 0.0)
    limits = torch.finfo(reference.dtype)
    spread = _fused_spread(exact, reference, disturbed)
    if spread is None:
        spread = _row_spread(reference.double() - exact)
        for other in disturbed:
            spread = torch.maximum(spread, DISTURBED * _row_spread(other.double() - exact))
    ulps = max(8.0, 2.0 * fan_in**0.25)
    return Expected(exact, reference, spread + limits.smallest_normal * limits.eps, ulps * limits.eps)


def _fused_spread(
    exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """`_row_spread` of all of them in one pass; None where that does not apply, or not all is finite."""
    native = library("rows")
    if native is None or not disturbed or not all(_fusible(r, exact) for r in (reference, *disturbed)):
        return None
    rows, columns = reference.numel() // reference.shape[-1], reference.shape[-1]
    found = torch.empty(len(disturbed), rows, dtype=torch.float64)
    for other, spread in zip(disturbed, found, strict=True):
        native.row_spread(reference, other, exact, spread, rows, columns, RMS_FACTOR, MAX_FACTOR, DISTURBED)
    spread = found.amax(0).view(*reference.shape[:-1], 1)
    return spread if bool(torch.isfinite(spread).all()) else None


def _fusible(single: torch.Tensor, *doubles: torch.Tensor) -> bool:
    """Whether these are rows as rows.cpp reads them: a float32 tensor beside float64 ones."""
    if single.dtype is not torch.float32 or not single.dim() or not single.numel():
        return False
    return single.is_contiguous() and all(d.dtype is torch.float64 and d.is_contiguous() for d in doubles)


def _row_spread(error: torch.Tensor) -> torch.Tensor:
    """What a row's errors allow: over the last dimension, of the finite elements only."""
    if not error.dim():
        return _row_spread(error.reshape(1)).reshape(())
    if not error.numel():
        return torch.zeros((), dtype=error.dtype)
    spread = _spread(error, error.shape[-1])
    if bool(torch.isfinite(spread).all()):
        return spread
    finite = torch.isfinite(error)
    return _spread(torch.where(finite, error, 0.0), finite.sum(-1, keepdim=True).clamp(min=1))


def _spread(error: torch.Tensor, count: int | torch.Tensor) -> torch.Tensor:
    norm = torch.linalg.vector_norm(error, dim=-1, keepdim=True)
    largest = torch.linalg.vector_norm(error, ord=math.inf, dim=-1, keepdim=True)
    return torch.maximum(
        norm * RMS_FACTOR / torch.as_tensor(count, dtype=error.dtype).sqrt(), largest * MAX_FACTOR
    )


@dataclass(frozen=True)
class Comparison:
    """`error` in units of the budget, infinite where the outputs cannot be compared; `detail` says where."""

    error: float
    detail: str


def compare(expected: Expected, actual: torch.Tensor) -> Comparison:
    """Compare an output of the right shape and dtype against its budget."""
    exact = expected.exact
    if actual.is_complex():
        actual = torch.view_as_real(actual)
    if not expected.reference.is_floating_point():
        bad = (actual != exact.to(actual.dtype)) & (actual != expected.reference)
        return Comparison(math.inf, _where(bad, actual, exact)) if bool(bad.any()) else Comparison(0.0, "")
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
    worst = float(error.max())
    if worst <= 1.0:
        return Comparison(worst, "")
    return Comparison(worst, _where(error > 1.0, actual, exact))


def _fused_error(expected: Expected, actual: torch.Tensor) -> float | None:
    """The largest error in one pass; None where that does not apply, or an element needs a closer look."""
    native = library("rows")
    if native is None or not _fusible(actual, expected.exact, expected.spread):
        return None
    rows, columns = actual.numel() // actual.shape[-1], actual.shape[-1]
    found = torch.empty(2, dtype=torch.float64)
    exact, spread, relative = expected.exact, expected.spread, expected.relative
    native.worst_error(actual, exact, spread, relative, rows, columns, found)
    worst, beyond = found.tolist()
    return worst if not beyond else None


def resembles(expected: Expected, actual: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results for the same inputs, not those of `expected`, may both be right.

    For looking at many calls cheaply: the largest tolerance of the expected call, four times over, is
    allowed between them. Results that were not computed are further apart.
    """
    if not actual.is_floating_point() and not actual.is_complex():
        return float((actual != other).double().mean()) <= 1e-3
    if actual.is_complex():
        actual, other = torch.view_as_real(actual), torch.view_as_real(other)
    actual, other = actual.double(), other.double()
    allowed = 4 * (expected.spread.max() + expected.relative * other.abs())
    fits = ((actual - other).abs_() <= allowed) | (actual == other) | ~torch.isfinite(other)
    return bool(fits.all())


def _where(bad: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor) -> str:
    first = tuple(int(i[0]) for i in torch.nonzero(bad, as_tuple=True)) if bad.dim() else ()
    got, wanted = actual[first].item(), exact[first].item()
    return (
        f"{int(bad.sum())} of {bad.numel()} elements differ, "
        f"first at {list(first)}: {got:.6g}, not {wanted:.6g}"
    )
