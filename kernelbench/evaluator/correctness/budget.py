"""Error budgets of outputs, from float64.

The budget of an output element is

    tolerance = max(16 * rms(r, s), 4 * max(r, s)) + (max(8, ulps(K)) * eps + 16 * rho) * |expected|

with eps of the precision that sums are held in, fp32 or float64; r the reference's own error and s 0.6 times
the reference's error on inputs and weights moved by an ulp or so (rounding once moves them by half of one:
the conditioning that no algorithm escapes), both over the element's row (the last dimension).

In bf16, fp16 and eight bits an output is rounded when it is stored, by much more than all that. Every right
result is off by that once, so it does not say how far off another may be:

- it is taken off r and s, which then are what was computed wrongly before, by roundings of intermediates.
  These count 8 times (rms) or 3 times (max), rho 4 times. s, from inputs moved by some four times what
  rounding does, counts 0.4 times: a kernel may round in a few more places than the reference does;
- each element may be off by 1.5 ulp of its own, which is one intermediate rounded and the result; in eight
  bits, in which nobody keeps intermediates, by one.

ulps(K) = min(K^(3/4), 512), where K is how many input elements an output element depends on: honest
sums are taken in another order. A plain loop over K numbers is off by about K^(1/2) ulps, and by up to K/2
where many are equal and round the same way each time. 512 ulps are 6e-5 in fp32; what is summed in a lower
precision is off by several times that. In bf16 512 ulps would be four times the result.

Columns of an output, the elements at one place of the last dimension, may be of very different sizes: a sum
of squares beside a mean. An element is then held to what its own column is off by, too, or what a column of
its size would be; see `_by_column`.

A row with few elements that are not zero, such as a relu leaves, has too few errors to judge by: its r and s
count for no less than the median of the rows beside it (those along the last dimension but one).

rho is the rms of r and s relative to the expected values, over the elements that dominate their rows and over
all rows of about the same size. A row that one element dominates has too few errors to judge by: the
reference may have been lucky there.

Where an output jumps (a sign, a rounding to whole numbers), an error as large as the jump says nothing of the
rest of its row: see `_without_jumps`. Where a result is on the other side of a jump, see `comparison`.

Errors are reported in units of the tolerance.

A softmax row of four elements: the exact result, what a reference in fp32 gives, and what it gives for inputs
that were moved by an ulp:

>>> exact = torch.tensor([[2.0, 1.0, 0.5, -1.0]]).double().softmax(-1)  # 0.6095, 0.2242, 0.1360, 0.0303
>>> reference = exact.float()  # off by 1.8e-8 at most
>>> moved = reference + torch.tensor([[2**-24, -(2**-25), 2**-26, 0.0]])  # off by 7.8e-8 at most
>>> expected = expect(exact, reference, [moved], fan_in=4)
>>> f"{expected.spread.item():.1e}"  # 16 * rms(s); 16 * rms(r) and 4 * max(s) are less
'4.1e-07'
>>> f"{expected.relative.item():.1e}"  # 8 * eps = 9.5e-7, and 16 * rho with rho = 7.7e-8
'2.2e-06'

So 0.6095 may be off by 4.1e-7 + 2.2e-6 * 0.6095 = 1.7e-6, and 0.0303 by 4.8e-7. The moved result is well
within that; a result that was rounded to bf16 is off by 445 times as much:

>>> from kernelwright.kernelbench.evaluator.correctness.comparison import compare
>>> round(compare(expected, moved).error, 2), round(compare(expected, exact.bfloat16().float()).error)
(0.04, 445)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernelwright.kernelbench.evaluator.correctness.ties import Ranking
from kernelwright.kernelbench.evaluator.memory.native import library
from kernelwright.kernelbench.evaluator.reference.float64 import LEAST_ULPS

# Chosen by hand, so that honest kernels pass and the red team's do not (docs/LOG.md: 2026-11-21, "A red team,
# and honest kernels that were turned away", and 2026-11-26, "Nothing wrong is called right").
_FEW = 1e-5  # share of an output's elements that may be on the other side of a jump; one, if that is more
_MANY = 10_000  # integers from which some more may jump than in the reference's runs
_DOMINANCE = 16.0  # an element dominates its row if it is at least the largest divided by this
_FEW_LIVE = 16  # nonzero elements of a row, below which there are too few errors to judge by
_BIN = 8  # powers of two within which rows are of about the same size
_CORE = 0.9  # share of a row's errors, the smallest ones, by which jumps are recognized
_BEYOND_CORE = 16.0  # factor over the largest of these from which an error is a jump's
_UNLIKE = 64.0  # factor between the sizes of two columns from which they are different quantities
_ROWS_OF_A_COLUMN = 128  # rows, about, from which a column's size is computed
_MOST_COLUMNS = 1 << 14  # columns whose sizes are computed, since medians take time
FAR = 16.0  # tolerances from which on an element may be on the other side of a jump


@dataclass(frozen=True)
class _Rules:
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


# fp32 and float64; 16 bits; 8 bits. Chosen by hand, as above; the module's docstring says what each factor
# allows for.
_FULL = _Rules(16.0, 4.0, 0.6, 512 * torch.finfo(torch.float32).eps, 16.0)
_HALF = _Rules(8.0, 3.0, 0.4, 1 / 32, 4.0, 0.5, 1.5)
_EIGHTH = replace(_HALF, stored=1.0, rounding=1.0)


def _rules(kind: torch.dtype) -> _Rules:
    if kind.itemsize == 1:
        return _EIGHTH
    return _HALF if kind.itemsize == 2 else _FULL


@dataclass(frozen=True)
class Expected:
    """One output: the float64 result, the reference's result in its own precision, and its budget.

    The tolerance is `spread` + `relative` * |exact|, both of which have one element a row (`spread` one an
    element where columns differ), + `rounding` ulps + what `jumps` allows single elements.

    `between`: the least and the largest of what the reference gives for moved inputs, and `few`, how many
    elements may be anything in between: see `across`. Of integers, all that it gives.
    """

    exact: torch.Tensor
    reference: torch.Tensor
    spread: torch.Tensor
    relative: torch.Tensor
    rankings: tuple[Ranking, ...] = ()  # that the output, an index, may be one of
    rounding: float = 0.0
    jumps: torch.Tensor | None = None
    between: tuple[torch.Tensor, ...] = ()
    few: int = 1

    @property
    def by_column(self) -> bool:
        return self.exact.dim() > 0 and self.spread.shape[-1] > 1

    def tolerance(self) -> torch.Tensor:
        found = self.exact.abs().mul_(self.relative).add_(self.spread)
        if self.rounding:
            found += self.rounding * _ulps(self.exact, self.reference.dtype)
        return found if self.jumps is None else found.add_(self.jumps)

    def errors(self, actual: torch.Tensor) -> torch.Tensor:
        """Signed errors of an output, in units of the tolerance."""
        actual = torch.view_as_real(actual) if actual.is_complex() else actual
        return (actual.double() - self.exact).div_(self.tolerance())

    def widened(self, other: "Expected") -> "Expected":
        """Return the larger of the two budgets, both of the same call."""
        jumps = self.jumps if other.jumps is None else other.jumps
        if self.jumps is not None and other.jumps is not None:
            jumps = torch.maximum(self.jumps, other.jumps)
        return replace(
            self,
            spread=torch.maximum(self.spread, other.spread),
            relative=torch.maximum(self.relative, other.relative),
            jumps=jumps,
            few=max(self.few, other.few),
        )

    def across(self, others: Sequence[torch.Tensor], moved: Sequence[torch.Tensor]) -> "Expected":
        """Return a budget in which few elements may be on the other side of a jump.

        `others` are the reference's results for slightly moved inputs, `moved` for inputs moved by more. An
        element that is far off may be what the latter give for it. As many elements may as jump in the
        former, or one in a hundred thousand; of many integers three standard deviations more.
        """
        exact = self.exact
        others, moved = ([_real(other) for other in some] for some in (others, moved))
        if not self.reference.is_floating_point():
            jumped = [int((other != exact).sum()) for other in (self.reference, *others)]
            between = (exact, self.reference, *moved)
        else:
            jumped = [0 if self.jumps is None else int((self.jumps > 0).sum())]
            jumped += [int((self.errors(other).abs() > FAR).sum()) for other in others]
            doubles = torch.stack([exact, *(m.double() for m in (self.reference, *moved))])
            between = (doubles.amin(0), doubles.amax(0))
        few = max(a_few(exact), *jumped)
        if not self.reference.is_floating_point() and exact.numel() >= _MANY:
            few += math.ceil(3 * math.sqrt(few))  # counts of jumps vary as a Poisson variable does
        return replace(self, between=between, few=few)

    def with_room_for(self, honest: torch.Tensor) -> "Expected":
        """Return a budget that allows results as far off as this one, or a little further."""
        if not self.reference.is_floating_point():
            return self
        rules = _rules(self.reference.dtype)
        errors = _error(_real(honest), self.exact, self.reference.dtype)
        room = _row_spread(errors if errors.dim() else errors.reshape(1), rules)
        room = room if errors.dim() else room.reshape(())
        if self.by_column:
            room = _by_column(room, self.exact, [errors], rules)
        return replace(self, spread=torch.maximum(self.spread, room / rules.largest))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def a_few(tensor: torch.Tensor) -> int:
    """Count the elements that may be on the other side of a jump."""
    return max(1, int(_FEW * tensor.numel()))


def _ulps(exact: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Spacing of the numbers of a precision at each of these values."""
    limits = torch.finfo(kind)
    _, exponent = torch.frexp(exact.nan_to_num(0.0, 0.0, 0.0).abs_().clamp_(min=limits.smallest_normal))
    return torch.ldexp(torch.full_like(exact, limits.eps), exponent - 1)


def _error(actual: torch.Tensor, exact: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Error of a result, less the rounding of storing it in a lower precision."""
    error = actual.double() - exact
    if stored := _rules(kind).stored:
        size = torch.maximum(exact.abs(), actual.double().abs()) if stored == 1.0 else exact
        error = error.sign() * (error.abs() - stored * _ulps(size, kind)).clamp_(min=0.0)
    return error


def expect(
    exact: torch.Tensor,
    reference: torch.Tensor,
    disturbed: Sequence[torch.Tensor],
    fan_in: float,
    coarse: bool = False,
    by_column: bool = False,
) -> Expected:
    """Return the budget of one output.

    `disturbed`: the reference's results for moved inputs, which were moved by ulps of a lower precision than
    fp32 if they are `coarse`; `fan_in`: K above; `by_column`: see `columns_differ`.
    """
    if reference.is_complex():
        exact, reference = torch.view_as_real(exact), torch.view_as_real(reference)
        disturbed = [torch.view_as_real(other) for other in disturbed]
    if not reference.is_floating_point():
        return Expected(exact, reference, torch.zeros(()), torch.zeros(()))
    limits, rules = torch.finfo(reference.dtype), _rules(reference.dtype)
    if coarse and rules is _FULL:
        rules = replace(_FULL, disturbed=_HALF.disturbed)
    rows = _fused_rows(exact, reference, disturbed, rules) or _rows(exact, reference, disturbed, rules)
    rows, jumps = _without_jumps(rows, exact, reference, disturbed, rules)
    summed = min(limits.eps, torch.finfo(torch.float32).eps)
    spread = rows.shared_spread()
    if by_column:
        spread = _by_column(spread, exact, _errors(exact, reference, disturbed, rules), rules)
    return Expected(
        exact,
        reference,
        spread + _least(limits),
        max(LEAST_ULPS, min(fan_in**0.75, 512.0)) * summed + rules.pooled * rows.pooled_ratio(),
        rounding=rules.rounding,
        jumps=jumps,
    )


def _least(limits: torch.finfo) -> float:
    """Largest value that may be flushed to zero: denormals, except in fp16 and eight bits."""
    like_others = limits.bits == 8 or limits.dtype == "float16"
    return limits.smallest_normal * (limits.eps if like_others else 2.0)


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


def _fused_rows(
    exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor], rules: _Rules
) -> _Rows | None:
    """`_rows` in one pass; None where that does not apply, or not all is finite."""
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


def _rows(
    exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor], rules: _Rules
) -> _Rows:
    if not exact.dim():
        others = [other.reshape(1) for other in disturbed]
        found = _rows(exact.reshape(1), reference.reshape(1), others, rules)
        return _Rows(*(v.reshape(()) for v in (found.spread, found.size, found.ratio, found.live)))
    if not exact.numel():
        nothing = exact.new_zeros((*exact.shape[:-1], 1))
        return _Rows(nothing, nothing, nothing, nothing)
    errors = _errors(exact, reference, disturbed, rules)
    values = torch.where(torch.isfinite(exact), exact, 0.0).abs_()
    size = values.amax(-1, keepdim=True)
    values = torch.where(values >= size / _DOMINANCE, values, 0.0)
    squares = [
        torch.where((values > 0) & e.isfinite(), e, 0.0).square_().sum(-1, keepdim=True) for e in errors
    ]
    energy = values.square_().sum(-1, keepdim=True)
    ratio = torch.stack(squares).amax(0) / torch.where(energy > 0, energy, 1.0)
    live = (exact != 0).sum(-1, keepdim=True).double()
    spread = torch.stack([_row_spread(error, rules) for error in errors]).amax(0)
    return _Rows(spread, size, ratio, live)


def _errors(
    exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor], rules: _Rules
) -> list[torch.Tensor]:
    """r, and an s for each of `disturbed`."""
    kind = reference.dtype
    moved = (_error(other, exact, kind).mul_(rules.disturbed) for other in disturbed)
    return [_error(reference, exact, kind), *moved]


def _without_jumps(
    rows: _Rows,
    exact: torch.Tensor,
    reference: torch.Tensor,
    disturbed: Sequence[torch.Tensor],
    rules: _Rules,
) -> tuple[_Rows, torch.Tensor | None]:
    """Return the rows, without what in them is a jump's error, and what is allowed where there is one.

    That is an error of a considerable part of the row's size, and many times as large as those of nine in ten
    elements. It is that element's alone: one sign that rounding has turned says nothing of the others.
    """
    if not exact.dim() or not exact.numel():
        return rows, None
    suspect = (rows.live >= _FEW_LIVE) & (rows.spread > rules.jump * rows.size)
    chosen = suspect.squeeze(-1)
    if not bool(chosen.any()):
        return rows, None
    errors = torch.stack(
        _errors(exact[chosen], reference[chosen], [other[chosen] for other in disturbed], rules)
    )
    largest = errors.abs().nan_to_num_(0.0, 0.0, 0.0).amax(0)
    live = (exact[chosen] != 0) | (largest > 0)
    ordered = torch.where(live, largest, -1.0).sort(-1, descending=True).values
    place = (live.sum(-1, keepdim=True) * (1 - _CORE)).ceil().long()
    core = ordered.gather(-1, place.clamp(max=ordered.shape[-1] - 1)).clamp(min=0.0)
    size = rows.size[chosen]
    jumping = (largest > _BEYOND_CORE * core) & (largest > rules.jump / rules.largest * size)
    if not bool(jumping.any()):
        return rows, None
    spread, ratio = rows.spread.clone(), rows.ratio.clone()
    rest = [torch.where(jumping, 0.0, error) for error in errors]
    spread[chosen] = torch.stack([_row_spread(error, rules) for error in rest]).amax(0)
    values = torch.where(exact[chosen].isfinite(), exact[chosen], 0.0).abs_()
    values = torch.where(values >= size / _DOMINANCE, values, 0.0)
    energy = values.square().sum(-1, keepdim=True)
    squares = [torch.where((values > 0) & e.isfinite(), e, 0.0).square_().sum(-1, keepdim=True) for e in rest]
    ratio[chosen] = torch.stack(squares).amax(0) / torch.where(energy > 0, energy, 1.0)
    jumps = torch.zeros_like(exact)
    jumps[chosen] = torch.where(jumping, rules.largest / rules.disturbed * largest, 0.0)
    return replace(rows, spread=spread, ratio=ratio), jumps


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


def _by_column(
    spread: torch.Tensor, exact: torch.Tensor, errors: Sequence[torch.Tensor], rules: _Rules
) -> torch.Tensor:
    """Return the spread of each element: its row's, or its column's if that is less.

    But as much of its row's as its column's size is of the largest: the reference may be exact in one.
    """
    sizes, columns = _column_sizes(exact), exact.shape[-1]
    own = torch.stack([_row_spread(e.reshape(-1, columns).mT, rules).flatten() for e in errors]).amax(0)
    share = torch.where(sizes > 0, sizes / sizes.max(), 1.0)
    return torch.minimum(spread, torch.maximum(own.expand_as(exact), spread * share))


def _row_spread(error: torch.Tensor, rules: _Rules) -> torch.Tensor:
    """Largest error that a row's errors allow: over the last dimension, of the finite elements only."""
    spread = _spread(error, error.shape[-1], rules)
    if bool(torch.isfinite(spread).all()):
        return spread
    finite = torch.isfinite(error)
    return _spread(torch.where(finite, error, 0.0), finite.sum(-1, keepdim=True).clamp(min=1), rules)


def _spread(error: torch.Tensor, count: int | torch.Tensor, rules: _Rules) -> torch.Tensor:
    norm = torch.linalg.vector_norm(error, dim=-1, keepdim=True)
    largest = torch.linalg.vector_norm(error, ord=math.inf, dim=-1, keepdim=True)
    return torch.maximum(
        norm * rules.rms / torch.as_tensor(count, dtype=error.dtype).sqrt(), largest * rules.largest
    )
