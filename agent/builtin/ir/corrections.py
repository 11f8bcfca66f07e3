"""Pairs of reductions of which the second needs the first's result, but can be corrected for another one.

Sums of exponentials below a maximum, and sums of squares about a mean: what was taken below the largest
element, or about the mean, of a part of a row is corrected for the whole row's. `scheduling/online.py` uses
that from block to block of a row, `passes/split_reductions.py` from part to part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kernelwright.agent.builtin.ir.program import Compute, Constant, Reduce, Statement, View


@dataclass(frozen=True)
class CorrectedSum:
    """Kind of the second reduction. `mean`: about which squares are taken; `centered`: what is squared."""

    kind: Literal["exponentials", "squares"]
    mean: str = ""
    centered: str = ""


def correction(
    first: Reduce, second: Reduce, statements: Mapping[str, Statement], length: int
) -> CorrectedSum | None:
    """Return how the second reduction depends on the first, both over rows of `length` elements."""
    if second.op != "sum" or second.dtype not in ("float32", "float64") or first.dtype != second.dtype:
        return None
    summed = statements.get(second.operand.base)
    if not isinstance(summed, Compute):
        return None
    argument = summed.operands[0]
    if first.op == "amax" and summed.op in ("exp", "exp_nonpositive"):
        below = is_difference(argument, first.operand, first.name, statements)
        return CorrectedSum("exponentials") if below else None
    if first.op != "sum" or summed.op != "mul" or summed.operands[1] != argument:
        return None
    centered = statements.get(argument.base) if isinstance(argument, View) else None
    mean = centered.operands[-1] if isinstance(centered, Compute) else None
    found = statements.get(mean.base) if isinstance(mean, View) else None
    if not isinstance(found, Compute) or found.op != "div":
        return None
    total, count = found.operands
    is_mean = isinstance(total, View) and total.base == first.name and count == Constant(length)
    assert isinstance(argument, View)
    if is_mean and is_difference(argument, first.operand, found.name, statements):
        return CorrectedSum("squares", found.name, argument.base)
    return None


def is_difference(
    operand: object, minuend: View, subtrahend: str, statements: Mapping[str, Statement]
) -> bool:
    """Return True if an operand is `minuend` less `subtrahend`."""
    found = statements.get(operand.base) if isinstance(operand, View) else None
    if not isinstance(found, Compute) or found.op != "sub" or found.settings:
        return False
    left, right = found.operands
    return left == minuend and isinstance(right, View) and right.base == subtrahend
