"""Errors of an output's rows, from which its error budget is made: see `correctness.budget`.

All is computed a block of rows at a time; of a large output only what is kept for each row is ever whole.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from kernelwright.kernelbench.evaluator.memory.blocks import Block, row_blocks
from kernelwright.kernelbench.evaluator.memory.native import library

Errors = Callable[[Block], Sequence[torch.Tensor]]  # of a block of rows, by several results

# Chosen by hand, as the factors of the error budget.
_DOMINANCE = 16.0  # an element dominates its row if it is at least the largest divided by this
_FEW_LIVE = 16  # nonzero elements of a row, below which there are too few errors to judge by
_BIN = 8  # powers of two within which rows are of about the same size
_CORE = 0.9  # share of a row's errors, the smallest ones, by which jumps are recognized
_BEYOND_CORE = 16.0  # factor over the largest of these from which an error is a jump's
_UNLIKE = 64.0  # factor between the sizes of two columns from which they are different quantities
_ROWS_OF_A_COLUMN = 128  # rows, about, from which a column's size is computed
_MOST_COLUMNS = 1 << 14  # columns whose sizes are computed, since medians take time


@dataclass(frozen=True)
class Rules:
    """Factors of the error budget, by the precision of the output, or of the inputs where that is lower.

    `disturbed`: of what was computed from moved inputs. `jump`: the least part of a row's size that is one.
    `pooled`: of the errors relative to the elements that dominate rows.
    `stored`: ulps by which storing an output may put it off; `rounding`: ulps that each element may be off.
    """

    rms: float
    largest: float
    disturbed: float
    jump: float
    pooled: float
    stored: float = 0.0
    rounding: float = 0.0


# fp32 and float64; 16 bits. Chosen by hand; `correctness.budget` says what each factor allows for.
FULL = Rules(16.0, 4.0, 0.6, 512 * torch.finfo(torch.float32).eps, 16.0)
HALF = Rules(8.0, 3.0, 0.4, 1 / 32, 4.0, 0.5, 1.5)


def rules_of(kind: torch.dtype) -> Rules:
    return HALF if kind.itemsize == 2 else FULL


def ulps_of(exact: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Spacing of the numbers of a precision at each of these values."""
    limits = torch.finfo(kind)
    _, exponent = torch.frexp(exact.nan_to_num(0.0, 0.0, 0.0).abs_().clamp_(min=limits.smallest_normal))
    return torch.ldexp(torch.full_like(exact, limits.eps), exponent - 1)


def error_of(actual: torch.Tensor, exact: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Error of a result, less the rounding of storing it in a lower precision."""
    error = actual.double() - exact
    if stored := rules_of(kind).stored:
        error = error.sign() * (error.abs() - stored * ulps_of(exact, kind)).clamp_(min=0.0)
    return error


@dataclass(frozen=True)
class _Rows:
    """Statistics of rows: spread of errors, largest value, and squares of errors over those of values.

    The last counts dominating elements only; `live` are those that are not zero. Shapes are those of the
    output with a last dimension of 1.
    """

    spread: torch.Tensor
    size: torch.Tensor
    ratio: torch.Tensor
    live: torch.Tensor

    def shared_spread(self) -> torch.Tensor:
        """Return the spread; of rows with few live elements at least the median of those beside them."""
        few = (self.live > 0) & (self.live < _FEW_LIVE)
        if self.spread.dim() < 2 or not bool(few.any()):
            return self.spread
        typical, other = (
            self.spread.where(self.live >= least, math.nan).nanmedian(-2, keepdim=True).values
            for least in (_FEW_LIVE, 1)
        )
        typical = typical.where(typical.isfinite(), other).nan_to_num(0.0, 0.0, 0.0)
        return self.spread.where(~few, torch.maximum(self.spread, typical))

    def pooled_ratio(self) -> torch.Tensor:
        """Root of the mean ratio over the rows of about the same size, for each row."""
        _, exponents = torch.frexp(self.size)
        bins = torch.div(exponents.flatten() + 1100, _BIN, rounding_mode="floor").clamp_(0, 1000)
        ratio = self.ratio.flatten().nan_to_num(0.0, 0.0, 0.0)
        mean = torch.bincount(bins, ratio) / torch.bincount(bins).clamp(min=1)
        return mean.sqrt()[bins].view_as(self.size)


def fused_rows(
    exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor], rules: Rules
) -> _Rows | None:
    """`rows_of` in one pass; None where that does not apply, or not all is finite."""
    native = library("rows")
    if native is None or not disturbed or not all(fusible(r, exact) for r in (reference, *disturbed)):
        return None
    rows, columns = reference.numel() // reference.shape[-1], reference.shape[-1]
    spread, size, ratio, live = torch.empty(4, len(disturbed), rows, dtype=torch.float64)
    factors = (rules.rms, rules.largest, rules.disturbed, _DOMINANCE)
    for i, other in enumerate(disturbed):
        found = (spread[i], size[i], ratio[i], live[i])
        native.row_spread(reference, other, exact, *found, rows, columns, *factors)
    shape = (*reference.shape[:-1], 1)
    rows_found = _Rows(*(values.amax(0).view(shape) for values in (spread, size, ratio, live)))
    return rows_found if bool(torch.isfinite(rows_found.spread).all()) else None


def rows_of(
    exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor], rules: Rules
) -> _Rows:
    if not exact.dim():
        others = [other.reshape(1) for other in disturbed]
        found = rows_of(exact.reshape(1), reference.reshape(1), others, rules)
        return _Rows(*(v.reshape(()) for v in (found.spread, found.size, found.ratio, found.live)))
    if not exact.numel():
        nothing = exact.new_zeros((*exact.shape[:-1], 1))
        return _Rows(nothing, nothing, nothing, nothing)
    found = _Rows(*exact.new_empty(4, *exact.shape[:-1], 1))
    for at in row_blocks(exact.shape):
        block = _block_of_rows(exact[at], reference[at], [other[at] for other in disturbed], rules)
        for values, part in zip(vars(found).values(), vars(block).values(), strict=True):
            values[at] = part
    return found


def _block_of_rows(
    exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor], rules: Rules
) -> _Rows:
    errors = errors_of(exact, reference, disturbed, rules)
    values = torch.where(torch.isfinite(exact), exact, 0.0).abs_()
    size = values.amax(-1, keepdim=True)
    values = torch.where(values >= size / _DOMINANCE, values, 0.0)
    squares = [
        torch.where((values > 0) & e.isfinite(), e, 0.0).square_().sum(-1, keepdim=True) for e in errors
    ]
    energy = values.square_().sum(-1, keepdim=True)
    ratio = torch.stack(squares).amax(0) / torch.where(energy > 0, energy, 1.0)
    live = (exact != 0).sum(-1, keepdim=True).double()
    spread = torch.stack([row_spread(error, rules) for error in errors]).amax(0)
    return _Rows(spread, size, ratio, live)


def errors_of(
    exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor], rules: Rules
) -> list[torch.Tensor]:
    """r, and an s for each of `disturbed`."""
    kind = reference.dtype
    moved = (error_of(other, exact, kind).mul_(rules.disturbed) for other in disturbed)
    return [error_of(reference, exact, kind), *moved]


def without_jumps(
    rows: _Rows,
    exact: torch.Tensor,
    reference: torch.Tensor,
    disturbed: Sequence[torch.Tensor],
    rules: Rules,
) -> tuple[_Rows, torch.Tensor | None]:
    """Return the rows, without what in them is a jump's error, and what is allowed where there is one.

    That is an error of a considerable part of the row's size, and many times as large as those of nine in ten
    elements. It is that element's alone: one sign that rounding has turned says nothing of the others.
    """
    if not exact.dim() or not exact.numel():
        return rows, None
    spread, ratio, jumps = rows.spread, rows.ratio, None
    for at in row_blocks(exact.shape):
        block = _Rows(*(values[at] for values in vars(rows).values()))
        found = _jumps_of(block, exact[at], reference[at], [other[at] for other in disturbed], rules)
        if found is None:
            continue
        if jumps is None:
            spread, ratio, jumps = spread.clone(), ratio.clone(), torch.zeros_like(exact)
        spread[at], ratio[at], jumps[at] = found
    return replace(rows, spread=spread, ratio=ratio), jumps


def _jumps_of(
    rows: _Rows,
    exact: torch.Tensor,
    reference: torch.Tensor,
    disturbed: Sequence[torch.Tensor],
    rules: Rules,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Return spread and ratio of the rows without jumps, and what those allow; None where there are none."""
    suspect = (rows.live >= _FEW_LIVE) & (rows.spread > rules.jump * rows.size)
    chosen = suspect.squeeze(-1)
    if not bool(chosen.any()):
        return None
    errors = torch.stack(
        errors_of(exact[chosen], reference[chosen], [other[chosen] for other in disturbed], rules)
    )
    largest = errors.abs().nan_to_num_(0.0, 0.0, 0.0).amax(0)
    live = (exact[chosen] != 0) | (largest > 0)
    ordered = torch.where(live, largest, -1.0).sort(-1, descending=True).values
    place = (live.sum(-1, keepdim=True) * (1 - _CORE)).ceil().long()
    core = ordered.gather(-1, place.clamp(max=ordered.shape[-1] - 1)).clamp(min=0.0)
    size = rows.size[chosen]
    jumping = (largest > _BEYOND_CORE * core) & (largest > rules.jump / rules.largest * size)
    if not bool(jumping.any()):
        return None
    spread, ratio = rows.spread.clone(), rows.ratio.clone()
    rest = [torch.where(jumping, 0.0, error) for error in errors]
    spread[chosen] = torch.stack([row_spread(error, rules) for error in rest]).amax(0)
    values = torch.where(exact[chosen].isfinite(), exact[chosen], 0.0).abs_()
    values = torch.where(values >= size / _DOMINANCE, values, 0.0)
    energy = values.square().sum(-1, keepdim=True)
    squares = [torch.where((values > 0) & e.isfinite(), e, 0.0).square_().sum(-1, keepdim=True) for e in rest]
    ratio[chosen] = torch.stack(squares).amax(0) / torch.where(energy > 0, energy, 1.0)
    jumps = torch.zeros_like(exact)
    jumps[chosen] = torch.where(jumping, rules.largest / rules.disturbed * largest, 0.0)
    return spread, ratio, jumps


def fusible(single: torch.Tensor, *doubles: torch.Tensor) -> bool:
    """Return True for rows as rows.cpp reads them: a float32 tensor beside float64 ones."""
    if single.dtype is not torch.float32 or not single.is_cpu or not single.dim() or not single.numel():
        return False
    return single.is_contiguous() and all(d.dtype is torch.float64 and d.is_contiguous() for d in doubles)


def _column_sizes(output: torch.Tensor) -> torch.Tensor:
    """Median size of each column's elements that are not zero; 0 for a column that has none.

    The rms would not do: of columns of one quantity with heavy tails one may hold the largest element
    overall.
    """
    values = output.reshape(-1, output.shape[-1])
    values = values[:: -(-len(values) // _ROWS_OF_A_COLUMN)].double().abs()
    return values.where(values.isfinite() & (values > 0), math.nan).nanmedian(0).values.nan_to_num_(0.0)


def columns_differ(output: torch.Tensor) -> bool:
    """Return True if an output's columns are different quantities, by a draw of the task's own.

    A draw of another family would not do: the exponential of heavy tails has columns of all sizes.
    """
    if not output.is_floating_point() or output.dim() < 2 or output.shape[-1] < 2:
        return False
    if output.numel() < _FEW_LIVE * output.shape[-1]:
        return False  # too few rows to tell
    sizes = _column_sizes(output[..., :: -(-output.shape[-1] // _MOST_COLUMNS)])
    known = sizes[sizes > 0]
    return known.numel() > 1 and float(known.max() / known.min()) > _UNLIKE


def by_column_of(spread: torch.Tensor, exact: torch.Tensor, errors: Errors, rules: Rules) -> torch.Tensor:
    """Return the spread of each element: its row's, or its column's if that is less.

    But as much of its row's as its column's size is of the largest: the reference may be exact in one.
    """
    sizes = _column_sizes(exact)
    own = _column_spread(exact, errors, rules)
    share = torch.where(sizes > 0, sizes / sizes.max(), 1.0)
    found = torch.empty_like(exact)
    for at in row_blocks(exact.shape):
        of_rows = spread[at]
        found[at] = torch.minimum(of_rows, torch.maximum(own.expand_as(found[at]), of_rows * share))
    return found


def _column_spread(exact: torch.Tensor, errors: Errors, rules: Rules) -> torch.Tensor:
    """Largest error that each column's errors allow, as `row_spread` says it of a row's."""
    columns = exact.shape[-1]
    energy, largest, count = (exact.new_zeros(1, columns) for _ in range(3))
    for at in row_blocks(exact.shape):
        several = torch.stack([error.reshape(-1, columns) for error in errors(at)])
        finite = several.isfinite()
        several = torch.where(finite, several, 0.0)
        energy = energy + several.square().sum(1)
        largest = torch.maximum(largest, several.abs().amax(1))
        count = count + finite.sum(1)
    rms = (energy / count.clamp(min=1)).sqrt()
    return torch.maximum(rms * rules.rms, largest * rules.largest).amax(0)


def spread_of(exact: torch.Tensor, errors: Errors, rules: Rules) -> torch.Tensor:
    """Return `row_spread` of the first result's errors, for all rows of an output."""
    if not exact.dim():
        return row_spread(errors(())[0].reshape(1), rules).reshape(())
    found = exact.new_empty(*exact.shape[:-1], 1)
    for at in row_blocks(exact.shape):
        found[at] = row_spread(errors(at)[0], rules)
    return found


def row_spread(error: torch.Tensor, rules: Rules) -> torch.Tensor:
    """Largest error that a row's errors allow: over the last dimension, of the finite elements only."""
    spread = _spread(error, error.shape[-1], rules)
    if bool(torch.isfinite(spread).all()):
        return spread
    finite = torch.isfinite(error)
    return _spread(torch.where(finite, error, 0.0), finite.sum(-1, keepdim=True).clamp(min=1), rules)


def _spread(error: torch.Tensor, count: int | torch.Tensor, rules: Rules) -> torch.Tensor:
    norm = torch.linalg.vector_norm(error, dim=-1, keepdim=True)
    largest = torch.linalg.vector_norm(error, ord=math.inf, dim=-1, keepdim=True)
    return torch.maximum(
        norm * rules.rms / torch.as_tensor(count, dtype=error.dtype).sqrt(), largest * rules.largest
    )
