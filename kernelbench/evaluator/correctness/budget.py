"""Error budgets of outputs, from float64.

The budget of an output element is

    tolerance = max(16 * rms(r, s), 4 * max(r, s)) + (max(8, ulps(K)) * eps + 16 * rho) * |expected|

with eps of the precision that sums are held in, fp32 or float64; r the reference's own error and s 0.6 times
the reference's error on inputs and weights moved by an ulp or so (rounding once moves them by half of one:
the conditioning that no algorithm escapes), both over the element's row (the last dimension).

In bf16 and fp16 an output is rounded when it is stored, by much more than all that. Every right
result is off by that once, so it does not say how far off another may be:

- it is taken off r and s, which then are what was computed wrongly before, by roundings of intermediates.
  These count 8 times (rms) or 3 times (max), rho 4 times. s, from inputs moved by some four times what
  rounding does, counts 0.4 times: a kernel may round in a few more places than the reference does;
- each element may be off by 1.5 ulp of its own, which is one intermediate rounded and the result;
- and by ulps(K) of the largest of its row, in fp32: where a sum cancels, its terms do not, and what rounding
  them does is not seen in the other elements, which are rounded when they are stored.

In eight bits, floats too, a value is right or wrong, as integers are: quantization is a jump everywhere.

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
rest of its row: see `without_jumps`. Where a result is on the other side of a jump, see `comparison`.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernelwright.kernelbench.evaluator.correctness.row_errors import (
    FULL,
    HALF,
    by_column_of,
    error_of,
    errors_of,
    fused_rows,
    rows_of,
    rules_of,
    spread_of,
    ulps_of,
    without_jumps,
)
from kernelwright.kernelbench.evaluator.correctness.ties import Ranking
from kernelwright.kernelbench.evaluator.memory.blocks import Block, row_blocks
from kernelwright.kernelbench.evaluator.reference.float64 import LEAST_ULPS, is_discrete

# Chosen by hand, so that honest kernels pass and the red team's do not (docs/LOG.md: 2026-11-21, "A red team,
# and honest kernels that were turned away", and 2026-11-26, "Nothing wrong is called right").
_FEW = 1e-5  # share of an output's elements that may be on the other side of a jump; one, if that is more
_MANY = 10_000  # integers from which some more may jump than in the reference's runs
_NAN = 2.0**24  # which no eight-bit float is, in place of NaN
FAR = 16.0  # tolerances from which on an element may be on the other side of a jump


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
            found += self.rounding * ulps_of(self.exact, self.reference.dtype)
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

    def part(self, at: Block) -> "Expected":
        """Return the budget of a block of rows, for floating outputs."""
        if not at:
            return self
        jumps, between = self.jumps, tuple(bound[at] for bound in self.between)
        return replace(
            self,
            exact=self.exact[at],
            reference=self.reference[at],
            spread=self.spread[at],
            relative=self.relative[at],
            jumps=None if jumps is None else jumps[at],
            between=between,
        )

    def at(self, index: tuple[Any, ...]) -> "Expected":
        """Return the budgets of single elements, by an index of each dimension."""
        jumps, shape = self.jumps, self.exact.shape
        exact, reference = self.exact[index], self.reference[index]
        if is_discrete(reference.dtype):
            return replace(self, exact=exact, reference=reference, rankings=(), between=())
        return replace(
            self,
            exact=exact,
            reference=reference,
            spread=self.spread.expand(shape)[index],
            relative=self.relative.expand(shape)[index],
            jumps=None if jumps is None else jumps[index],
            between=(),
            rankings=(),
        )

    def own_jumps(self) -> int:
        """Count the elements, of a discrete output, that the reference's own precision decides otherwise."""
        if not is_discrete(self.reference.dtype):
            return 0
        return int((comparable(self.reference) != comparable(self.exact)).sum())

    def across(self, others: Iterable[torch.Tensor], moved: Iterable[torch.Tensor]) -> "Expected":
        """Return a budget in which few elements may be on the other side of a jump: see `Across`."""
        across = Across(self)
        for other in others:
            across.jump(other)
        for other in moved:
            across.move(other)
        return across.budget()

    def with_room_for(self, honest: torch.Tensor) -> "Expected":
        """Return a budget that allows results as far off as this one, or a little further."""
        if is_discrete(self.reference.dtype):
            return self
        exact, kind, honest = self.exact, self.reference.dtype, real(honest)
        rules = rules_of(kind)

        def errors(at: Block) -> list[torch.Tensor]:
            return [error_of(honest[at], exact[at], kind)]

        room = spread_of(exact, errors, rules)
        if self.by_column:
            room = by_column_of(room, exact, errors, rules)
        return replace(self, spread=torch.maximum(self.spread, room / rules.largest))


@dataclass(frozen=True)
class ErrorsOf:
    """Errors of a result in units of its tolerance, one block of rows after the other; to be read again."""

    expected: Expected
    actual: torch.Tensor

    def __iter__(self) -> Iterator[torch.Tensor]:
        for at in row_blocks(self.actual.shape):
            yield self.expected.part(at).errors(self.actual[at])


class Across:
    """Budget in which few elements may be on the other side of a jump, from one result after the other.

    An element that is far off may be what the reference gives for inputs that are moved by more than an ulp.
    As many elements may as jump for slightly moved inputs, or one in a hundred thousand; of many integers
    three standard deviations more.
    """

    def __init__(self, expected: Expected) -> None:
        self._expected, exact = expected, expected.exact
        self._whole = is_discrete(expected.reference.dtype)
        if self._whole:
            self._between = [exact, expected.reference]
            self._jumped = expected.own_jumps()
        else:
            self._between = [exact.clone(), exact.clone()]
            self._jumped = 0 if expected.jumps is None else int((expected.jumps > 0).sum())
            self.move(expected.reference)

    def jump(self, other: torch.Tensor) -> None:
        """Take in a result for slightly moved inputs."""
        expected, other = self._expected, real(other)
        if self._whole:
            jumped = int((comparable(other) != comparable(expected.exact)).sum())
        else:
            jumped = sum(int((errors.abs() > FAR).sum()) for errors in ErrorsOf(expected, other))
        self._jumped = max(self._jumped, jumped)

    def move(self, other: torch.Tensor) -> None:
        """Take in a result for inputs that are moved by more."""
        other = real(other)
        if self._whole:
            self._between.append(other)
            return
        least, largest = self._between
        for at in row_blocks(other.shape):
            value = other[at].double()
            least[at], largest[at] = torch.minimum(least[at], value), torch.maximum(largest[at], value)

    def budget(self) -> Expected:
        exact = self._expected.exact
        few = max(a_few(exact), self._jumped)
        if self._whole and exact.numel() >= _MANY:
            few += math.ceil(3 * math.sqrt(few))  # counts of jumps vary as a Poisson variable does
        return replace(self._expected, between=tuple(self._between), few=few)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as two real ones each, in a last dimension; others as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Return discrete values such that those that mean the same are equal: a NaN of eight bits, zeros."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.float().nan_to_num(_NAN, math.inf, -math.inf)


def a_few(tensor: torch.Tensor) -> int:
    """Count the elements that may be on the other side of a jump."""
    return max(1, int(_FEW * tensor.numel()))


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
    if is_discrete(reference.dtype):
        return Expected(exact, reference, torch.zeros(()), torch.zeros(()))
    limits, rules = torch.finfo(reference.dtype), rules_of(reference.dtype)
    if coarse and rules is FULL:
        rules = replace(FULL, disturbed=HALF.disturbed)

    def errors(at: Block) -> list[torch.Tensor]:
        return errors_of(exact[at], reference[at], [other[at] for other in disturbed], rules)

    rows = fused_rows(exact, reference, disturbed, rules) or rows_of(exact, reference, disturbed, rules)
    rows, jumps = without_jumps(rows, exact, reference, disturbed, rules)
    summed = max(LEAST_ULPS, min(fan_in**0.75, 512.0)) * min(limits.eps, torch.finfo(torch.float32).eps)
    spread, least = rows.shared_spread(), _least(limits)
    if rules is HALF:
        spread = spread + summed * rows.size
    spread = by_column_of(spread, exact, errors, rules).add_(least) if by_column else spread + least
    return Expected(
        exact,
        reference,
        spread,
        summed + rules.pooled * rows.pooled_ratio(),
        rounding=rules.rounding,
        jumps=jumps,
    )


def _least(limits: torch.finfo) -> float:
    """Largest value that may be flushed to zero: denormals, except in fp16."""
    return limits.smallest_normal * (limits.eps if limits.dtype == "float16" else 2.0)
