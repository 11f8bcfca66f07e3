"""The operators that the builtin coder writes itself: one table entry each.

What an operator computes is an expression over its operands. The functions that it calls each language
defines, so the table serves all of them. Operators that take settings have a function of these.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch

from kernelwright.agent.builtin.ir.expression import (
    BEFORE,
    FIRST_STEP,
    INDEX,
    X0,
    X1,
    X2,
    Call,
    Const,
    Expression,
    Infix,
    Lookup,
    X,
    call,
    equal,
    unequal,
)
from kernelwright.agent.builtin.ir.text import EIGHTS, SMALL_FLOATS

# What a pointwise operator computes in: the result's dtype, or the operands' common dtype.
Computes = Literal["result", "operands"]
Settings = dict[str, object]

FLOATS = {"float32", "float64"} | SMALL_FLOATS
SUPPORTED_DTYPES = FLOATS | {"int64", "int32", "int16", "int8", "uint8", "bool"}
ORDERED = {"float32", "float64", "int64", "int32", "bfloat16", "float16"}


@dataclass(frozen=True)
class Pointwise:
    """`operands` of the schema's arguments are read per element; the rest are settings."""

    arguments: tuple[str, ...]
    expression: Expression | Callable[[Settings], Expression]
    operands: int
    computes: Computes = "result"
    cost: int = 1  # in additions: what it costs to recompute

    def tree(self, settings: Settings) -> Expression:
        return self.expression if isinstance(self.expression, Expression) else self.expression(settings)


@dataclass(frozen=True)
class Reduction:
    """`update` folds the second operand into the first; `simd` is the OpenMP reduction identifier."""

    initial: int | bool | Literal["lowest", "highest"]
    update: Expression
    simd: str


def number(value: object, default: float) -> Const:
    """Return a setting, as a number of the type that the operator computes in."""
    return Const(float(default if value is None else value))  # type: ignore[arg-type]


def _unary(expression: Expression, cost: int = 1) -> Pointwise:
    return Pointwise(("self",), expression, 1, cost=cost)


def _binary(expression: Expression, computes: Computes = "result", cost: int = 1) -> Pointwise:
    return Pointwise(("self", "other"), expression, 2, computes, cost)


def _scaled(settings: Settings) -> Expression:
    alpha = settings.get("alpha", 1)
    return X1 if alpha == 1 else number(alpha, 1) * X1


def _clamp(settings: Settings) -> Expression:
    found: Expression = X0
    if settings.get("min") is not None:
        found = call("at_least", found, number(settings["min"], 0))
    if settings.get("max") is not None:
        found = call("at_most", found, number(settings["max"], 0))
    return found


def _power(settings: Settings) -> Expression:
    exponent = settings["exponent"]
    known = {
        0: Const(1.0),
        0.5: call("sqrt", X0),
        1: X0,
        2: X0 * X0,
        3: X0 * X0 * X0,
        4: (X0 * X0) * (X0 * X0),
        -0.5: call("rsqrt", X0),
        -1: 1.0 / X0,
        -2: 1.0 / (X0 * X0),
    }
    assert isinstance(exponent, int | float)
    return known.get(exponent, call("pow", X0, number(exponent, 1)))


def _gelu(settings: Settings) -> Expression:
    return call("gelu_tanh" if settings.get("approximate") == "tanh" else "gelu", X0)


def _elu(settings: Settings) -> Expression:
    return call("elu", X0, *(number(settings.get(k), 1) for k in ("alpha", "scale", "input_scale")))


def _softplus(settings: Settings) -> Expression:
    return call("softplus", X0, number(settings.get("beta"), 1), number(settings.get("threshold"), 20))


def _hardtanh(settings: Settings) -> Expression:
    low, high = number(settings.get("min_val"), -1), number(settings.get("max_val"), 1)
    return call("at_most", call("at_least", X0, low), high)


def _leaky_relu(settings: Settings) -> Expression:
    return call("where", X0 > 0.0, X0, number(settings.get("negative_slope"), 0.01) * X0)


def _hardshrink(settings: Settings) -> Expression:
    bound = number(settings.get("lambd"), 0.5)
    return call("where", (-bound <= X0) & (bound >= X0), 0.0, X0)


def _softshrink(settings: Settings) -> Expression:
    bound = number(settings.get("lambd"), 0.5)
    return call("where", bound < X0, X0 - bound, call("where", -bound > X0, X0 + bound, X0 * 0.0))


def _convert(settings: Settings) -> Expression:
    """Return the operand, rounded where a format has so few bits that it shows."""
    dtype = getattr(settings.get("dtype"), "dtype", None)
    return call(f"rounded_{dtype}", X0) if dtype in EIGHTS else X0


def _position_of_part(settings: Settings) -> Expression:
    """Return the place of a row's extreme: X2 in the part whose extreme it is, behind the parts before."""
    place = INDEX * Const(settings["length"], "int32") + X(2, "int32")  # type: ignore[arg-type]
    return call("where", _IS_EXTREME, place, Const(2**31 - 1, "int32"), dtype="int32")


def _shifted(sign: str) -> Pointwise:
    """Return the shift of an integer by a number of bits that is known."""
    return Pointwise(("self", "other"), lambda settings: Infix(sign, X0, number(settings["other"], 0)), 1)


def _ranked(settings: Settings) -> Expression:
    return call("ranked_down" if settings["smallest"] else "ranked", X0, INDEX)


def _unranked(settings: Settings) -> Expression:
    return Call("unranked_down" if settings["smallest"] else "unranked", (X0,), overloaded=False)


_IS_EXTREME = equal(X0, X1) | unequal(X0, X0)  # a NaN counts as the extreme
_SIGMOID_OF_SELF = call("sigmoid", X1)

POINTWISE: dict[str, Pointwise] = {
    "add": Pointwise(("self", "other", "alpha"), lambda settings: X0 + _scaled(settings), 2),
    "sub": Pointwise(("self", "other", "alpha"), lambda settings: X0 - _scaled(settings), 2),
    "rsub": Pointwise(("self", "other", "alpha"), X1 - X0, 2),
    "mul": _binary(X0 * X1),
    "div": _binary(X0 / X1),
    "pow": Pointwise(("self", "exponent"), _power, 1, cost=4),
    "pow_tensor": _binary(call("pow", X0, X1), cost=30),
    "ldexp": _binary(call("times_power_of_two", X0, X(1, "int32")), cost=4),
    "exp2_of_integer": _unary(Call("exp2_of_integer", (X(0, "int32"),), overloaded=False), 4),
    "maximum": _binary(call("maximum", X0, X1)),
    "minimum": _binary(call("minimum", X0, X1)),
    "clamp": Pointwise(("self", "min", "max"), _clamp, 1),
    "clamp_min": Pointwise(("self", "min"), _clamp, 1),
    "clamp_max": Pointwise(("self", "max"), _clamp, 1),
    "clamp_tensor_min": Pointwise(("self", "min"), call("maximum", X0, X1), 2),
    "abs": _unary(call("abs", X0)),
    "neg": _unary(-X0),
    "sign": _unary(call("sign", X0)),
    "reciprocal": _unary(1.0 / X0),
    "sqrt": _unary(call("sqrt", X0), 4),
    "rsqrt": _unary(call("rsqrt", X0), 6),
    "floor": _unary(call("floor", X0)),
    "ceil": _unary(call("ceil", X0)),
    "round": _unary(call("round", X0)),
    "trunc": _unary(call("trunc", X0)),
    "exp": _unary(call("exp", X0), 12),
    "exp_nonpositive": _unary(call("exp_nonpositive", X0), 12),
    "expm1": _unary(call("expm1", X0), 14),
    "log": _unary(call("log", X0), 16),
    "log1p": _unary(call("log1p", X0), 20),
    "tanh": _unary(call("tanh", X0), 20),
    "erf": _unary(call("erf", X0), 28),
    "sigmoid": _unary(call("sigmoid", X0), 16),
    "relu": _unary(call("at_least", X0, 0.0)),
    "gelu": Pointwise(("self", "approximate"), _gelu, 1, cost=30),
    "silu": _unary(X0 * call("sigmoid", X0), 16),
    "silu_backward": Pointwise(
        ("grad_output", "self"),
        X0 * (_SIGMOID_OF_SELF * (1.0 + X1 * (1.0 - _SIGMOID_OF_SELF))),
        2,
        cost=18,
    ),
    "mish": _unary(call("mish", X0), 40),
    "softplus": Pointwise(("self", "beta", "threshold"), _softplus, 1, cost=30),
    "elu": Pointwise(("self", "alpha", "scale", "input_scale"), _elu, 1, cost=16),
    "leaky_relu": Pointwise(("self", "negative_slope"), _leaky_relu, 1),
    "hardtanh": Pointwise(("self", "min_val", "max_val"), _hardtanh, 1),
    "relu6": _unary(call("at_most", call("at_least", X0, 0.0), 6.0)),
    "hardsigmoid": _unary(call("hardsigmoid", X0), 3),
    "hardswish": _unary(X0 * call("hardsigmoid", X0), 4),
    "hardshrink": Pointwise(("self", "lambd"), _hardshrink, 1),
    "softshrink": Pointwise(("self", "lambd"), _softshrink, 1),
    "carried": _unary(call("where", FIRST_STEP, X0, BEFORE)),
    "position": _binary(
        call("where", _IS_EXTREME, INDEX, Const(2**31 - 1, "int32"), dtype="int32"), "operands"
    ),
    "position_of_part": Pointwise(("self", "other", "place"), _position_of_part, 3, "operands"),
    "ranked": Pointwise(("self",), _ranked, 1, "operands", cost=8),
    "unranked": Pointwise(("self",), _unranked, 1, "operands", cost=4),
    "place": _unary(Call("place_of", (X0,), overloaded=False)),
    "take": _binary(Lookup(X0, X(1, "int64")), cost=4),
    "where": Pointwise(("condition", "self", "other"), call("where", X(0, "bool"), X1, X2), 3),
    "convert": Pointwise(("self", "dtype"), _convert, 1),
    "copy": _unary(X0),
    "eq": _binary(equal(X0, X1), "operands"),
    "ne": _binary(unequal(X0, X1), "operands"),
    "lt": _binary(X0 < X1, "operands"),
    "le": _binary(X0 <= X1, "operands"),
    "gt": _binary(X0 > X1, "operands"),
    "ge": _binary(X0 >= X1, "operands"),
    "isnan": Pointwise(("self",), unequal(X0, X0), 1, "operands"),
    "isinf": Pointwise(("self",), equal(call("abs", X0), math.inf), 1, "operands"),
    "logical_not": Pointwise(("self",), equal(X0, 0.0), 1, "operands"),
    "logical_and": _binary(unequal(X0, 0.0) & unequal(X1, 0.0), "operands"),
    "logical_or": _binary(unequal(X0, 0.0) | unequal(X1, 0.0), "operands"),
    "bitwise_not": _unary(call("bitwise_not", X0)),
    "bitwise_and": _binary(X0 & X1),
    "bitwise_or": _binary(X0 | X1),
    "bitwise_xor": _binary(X0 ^ X1),
    "rshift": _shifted(">>"),
    "lshift": _shifted("<<"),
}

# Overloads that are an operator of their own.
OVERLOADS = {
    "aten.pow.Tensor_Tensor": "pow_tensor",
    "aten.clamp.Tensor": "clamp_tensor_min",
    "aten.clamp_min.Tensor": "clamp_tensor_min",
    "aten._to_copy.default": "convert",
    "aten.__rshift__.Scalar": "rshift",
    "aten.__lshift__.Scalar": "lshift",
}
# Overloads of listed operators that mean something else.
UNSUPPORTED = {"aten.pow.Scalar", "aten.clamp_max.Tensor", "aten.div.Tensor_mode", "aten.div.Scalar_mode"}

REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(0, X0 + X1, "+"),
    "amax": Reduction("lowest", call("maximum", X0, X1), "max"),
    "amin": Reduction("highest", call("minimum", X0, X1), "min"),
    "prod": Reduction(1, X0 * X1, "*"),
    "any": Reduction(False, X0 | X1, "||"),
    "all": Reduction(True, X0 & X1, "&&"),
    "first": Reduction("highest", call("minimum", X0, X1), "min"),  # smallest index; never NaN
}


def pointwise_name(op: str) -> str | None:
    """Return the table's key for an ATen operator such as "aten.add.Tensor"."""
    if op in UNSUPPORTED:
        return None
    key = OVERLOADS.get(op, op.split(".")[1] if op.startswith("aten.") else "")
    return key if key in POINTWISE else None


def promoted(dtypes: Sequence[str]) -> str:
    """Return the common dtype of operands."""
    common = reduce(torch.promote_types, (getattr(torch, name) for name in dtypes))
    return str(common).removeprefix("torch.")
