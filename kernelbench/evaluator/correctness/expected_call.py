"""Outputs that one call must give, and how far off an honest result may be.

Budgets are made from the reference's own error and from what moving its inputs does (`correctness.budget`).
They stay as narrow as that until an output is beyond them. Then more runs of the reference say what else an
honest kernel may give: with inputs that are moved by more, where outputs jump; with more moved inputs; and
with sums that are taken in plain loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from kernelwright.kernelbench.evaluator.correctness.budget import Across, ErrorsOf, Expected, expect
from kernelwright.kernelbench.evaluator.correctness.comparison import Comparison, compare
from kernelwright.kernelbench.evaluator.correctness.mismatch import pattern_of
from kernelwright.kernelbench.evaluator.correctness.plain_sums import PlainSums
from kernelwright.kernelbench.evaluator.correctness.ties import Rankings
from kernelwright.kernelbench.evaluator.reference.model import Reference
from kernelwright.kernelbench.evaluator.reference.rounded import (
    FORMATS,
    RoundedProducts,
    follows,
    unlike_the_reference,
)

_FEW_OUTPUTS = 64  # elements; below, a single disturbance may hardly move any of them, so three are taken
_SHORT_ROW = 8  # elements; below, the same for two
_MARGINAL = 16.0  # budgets: what is beyond by no more is held to a budget from more disturbances
_MORE = 6  # of these
_MANY_JUMPS = 0.01  # of an output's elements; more are no chance
_AS_MANY = 2.0  # times those that jump in the reference's own precision, of discrete values, may
_ACROSS, _ACROSS_COARSE = 12, 32  # runs that say what an output may be where it jumps, in fp32 and in less
_ACROSS_ULPS, _ACROSS_COARSE_ULPS = 32.0, 2.0  # that inputs are moved by for that, in fp32 and in less


@dataclass
class OutputTraits:
    """Traits of a task's outputs that hold for all calls; of each output one of `by_column` and `fan_in`.

    `by_column`: whether columns are of different sizes; `fan_in`: how many input elements an element depends
    on; `coarse`: whether inputs are in less than fp32; `discrete`: whether an output may be an index;
    `bits`: of the mantissa, that operands of products may not be rounded to; `long_sums`: whether the
    reference takes any, True until it is known.
    """

    by_column: Sequence[bool]
    coarse: bool
    discrete: bool
    bits: Sequence[int]
    fan_in: Sequence[float] = field(default_factory=list)
    long_sums: bool = True


class ExpectedCall:
    """Expected outputs of one call, each with its budget."""

    def __init__(
        self,
        reference: Reference,
        traits: OutputTraits,
        tensors: Sequence[torch.Tensor],
        seed: int | None,
        moved: Sequence[torch.Tensor],
    ) -> None:
        """Run the reference on `tensors`, and for the budgets by ulps around `moved`, mostly the same."""
        self._reference, self._traits = reference, traits
        self._tensors, self._seed = tensors, seed
        self._rounded: dict[int, list[torch.Tensor]] = {}  # by bits: outputs with rounded products
        rankings = Rankings(), Rankings()
        outputs, exact = reference.both(tensors, seed, *(rankings if traits.discrete else ()))
        self.reference_outputs, self.exact = outputs, exact
        self.budgets: list[Expected] = []
        disturbed = list(reference.disturbed(_disturbances_of(exact), moved, seed))
        for position, (e, r) in enumerate(zip(exact, outputs, strict=True)):
            expected = self._expect(position, e, r, [found[position] for found in disturbed])
            if not r.is_floating_point() and not r.is_complex():
                found = (by.of(output) for by, output in zip(rankings, (r, e), strict=True))
                expected = replace(expected, rankings=tuple(ranking for ranking in found if ranking))
            self.budgets.append(expected)

    def _expect(
        self, position: int, exact: torch.Tensor, reference: torch.Tensor, disturbed: Sequence[torch.Tensor]
    ) -> Expected:
        traits = self._traits
        columns = traits.by_column[position]
        return expect(exact, reference, disturbed, traits.fan_in[position], traits.coarse, columns)

    def compare(self, outputs: Sequence[torch.Tensor]) -> list[Comparison]:
        """Compare outputs. Errors a little beyond a budget are held to one from more disturbances."""
        results = self._compared(outputs)
        if any(result.far for result in results) and self._may_jump(results):
            self._look_across()
            results = self._compared(outputs)
        if 1.0 < max(result.error for result in results) <= _MARGINAL:
            self._widen()
            results = self._compared(outputs)
        return results

    def _compared(self, outputs: Sequence[torch.Tensor]) -> list[Comparison]:
        return [compare(wanted, output) for output, wanted in zip(outputs, self.budgets, strict=True)]

    def _widen(self) -> None:
        """Take more disturbances into the budgets, for few may hardly move a row, and plain loops' sums."""
        self.budgets = self.with_room_for_loops()
        for outputs in self._reference.disturbed(_MORE, self._tensors, self._seed, fresh=True):
            for i, (old, other) in enumerate(zip(self.budgets, outputs, strict=True)):
                self.budgets[i] = old.widened(self._expect(i, old.exact, old.reference, [other]))

    def _may_jump(self, results: Sequence[Comparison]) -> bool:
        """Return True if so few elements are far off that they may be on the other side of a jump."""
        most = [
            max(1.0, _MANY_JUMPS * wanted.exact.numel(), _AS_MANY * wanted.own_jumps())
            for wanted in self.budgets
        ]
        known = any(wanted.between for wanted in self.budgets)
        return not known and all(result.far <= limit for result, limit in zip(results, most, strict=True))

    def _look_across(self) -> None:
        """See what outputs may be where they jump: what they are where inputs are moved by more."""
        coarse = self._traits.coarse
        runs, ulps = (_ACROSS_COARSE, _ACROSS_COARSE_ULPS) if coarse else (_ACROSS, _ACROSS_ULPS)
        budgets = [Across(old) for old in self.budgets]
        for outputs in self._reference.disturbed(2, self._tensors, self._seed, ulps=1.0):
            for budget, output in zip(budgets, outputs, strict=True):
                budget.jump(output)
        for outputs in self._reference.disturbed(runs, self._tensors, self._seed, ulps=ulps):
            for budget, output in zip(budgets, outputs, strict=True):
                budget.move(output)
        self.budgets = [budget.budget() for budget in budgets]

    def with_room_for_loops(self) -> list[Expected]:
        """Return the budgets; where the reference has long sums, with room for those of plain loops."""
        if not self._traits.long_sums:
            return self.budgets
        with PlainSums() as loops:
            outputs = self._run()
        self._traits.long_sums = bool(loops.taken)
        if not self._traits.long_sums:
            return self.budgets
        return [e.with_room_for(o) for e, o in zip(self.budgets, outputs, strict=True)]

    def lower_precision(self, outputs: Sequence[torch.Tensor]) -> str | None:
        """Name the format that operands of products were rounded to, by outputs' errors; None if none."""
        for i, (output, wanted) in enumerate(zip(outputs, self.budgets, strict=True)):
            if output.dtype is not torch.float32 or not self._traits.bits:
                continue
            own = ErrorsOf(wanted, wanted.reference)
            errors = ErrorsOf(wanted, output)
            if not unlike_the_reference(zip(errors, own, strict=True)):
                continue
            for bits in self._traits.bits:
                rounded = ErrorsOf(wanted, self._with_rounded_products(bits)[i])
                shift = (r - o for r, o in zip(rounded, own, strict=True))
                if follows(zip(errors, shift, own, strict=True)):
                    return FORMATS[bits]
        return None

    def pattern(self, position: int, outputs: Sequence[torch.Tensor]) -> str:
        """Sentences on what is wrong with an output that is; "" where there is no telling."""

        def products() -> str:
            lower = self.lower_precision(outputs)
            return "" if lower is None else f"Its errors are those of products with operands in {lower}."

        return pattern_of(self.budgets[position], outputs[position], products)

    def _with_rounded_products(self, bits: int) -> list[torch.Tensor]:
        if bits not in self._rounded:
            with RoundedProducts(bits):
                self._rounded[bits] = self._run()
        return self._rounded[bits]

    def _run(self) -> list[torch.Tensor]:
        return self._reference.run(self._reference.own, self._tensors, self._seed)


def _disturbances_of(outputs: Sequence[torch.Tensor]) -> int:
    """Return the number of disturbances: in rows of few elements, one may hardly move any of them."""
    if min((output.numel() for output in outputs), default=0) < _FEW_OUTPUTS:
        return 3
    return 2 if any(output.shape[-1] < _SHORT_ROW for output in outputs) else 1
