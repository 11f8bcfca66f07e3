"""Simplification: what need not be computed for any input, NaN, infinities and signed zeros included."""

import math
from collections.abc import Callable, Sequence

from kernelwright.agent.builtin.ir.ops import Settings
from kernelwright.agent.builtin.ir.program import Compute, Constant, Operand, Statement, View

_NEVER_NEGATIVE = {"exp", "exp_nonpositive", "sigmoid", "relu", "abs", "relu6", "hardsigmoid"}
_IDEMPOTENT = {"ceil", "floor", "round", "trunc", "relu6", "sign"}
_INVERSES = {"neg", "logical_not", "bitwise_not"}  # of themselves
_BY_OPERAND = {"relu", "abs"} | _IDEMPOTENT | _INVERSES


def unchanged(
    op: str, operands: Sequence[Operand], settings: Settings, maker: Callable[[str], Statement | None]
) -> Operand | None:
    """Operand that a pointwise operator returns as it is, or None. `maker` gives the statement of a value."""
    first, *rest = operands
    if settings.get("alpha", 1) != 1:
        return None
    if op in ("mul", "add"):
        neutral = _is_one if op == "mul" else _is_negative_zero
        return first if neutral(rest[0]) else rest[0] if neutral(first) else None
    if op == "div":
        return first if _is_one(rest[0]) else None
    if op == "sub":
        return first if rest[0] == Constant(0) and not _is_negative_zero(rest[0]) else None
    if op == "pow":
        return first if settings["exponent"] == 1 else None
    if op in ("maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_or"):
        return first if first == rest[0] else None
    if op == "where":
        return rest[0] if _same(rest[0], rest[1]) else None
    if op not in _BY_OPERAND or not isinstance(first, View):
        return None
    producer = maker(first.base)
    if not isinstance(producer, Compute):
        return None
    if (op in ("relu", "abs") and _is_never_negative(producer)) or (op in _IDEMPOTENT and producer.op == op):
        return first
    inner = producer.operands[0]
    is_back = op in _INVERSES and producer.op == op and first.linear and first.shape == producer.shape
    return inner if is_back and isinstance(inner, View) else None


def _is_never_negative(statement: Compute) -> bool:
    square = statement.op == "mul" and statement.operands[0] == statement.operands[1]
    return square or statement.op in _NEVER_NEGATIVE


def _is_one(operand: Operand) -> bool:
    return isinstance(operand, Constant) and operand.value == 1


def _is_negative_zero(operand: Operand) -> bool:
    """Return True for -0.0, which changes nothing when added; 0.0 makes another number of -0.0."""
    value = operand.value if isinstance(operand, Constant) else None
    return isinstance(value, float) and value == 0.0 and math.copysign(1.0, value) < 0


def _same(one: Operand, other: Operand) -> bool:
    return isinstance(one, View) and one == other
