"""The operators the builtin coder writes itself: one table entry each.

An expression is a template over the operands, `{0}`, `{1}` …, and the suffix `{t}` of the type it computes
in (`f32`, `f64`, `i64`, …). What it calls each language defines, so the table serves all of
them. Operators that take settings have a function that returns the expression.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch

# What a pointwise operator computes in: the result's dtype, or the operands' common dtype.
Computes = Literal["result", "operands"]
Settings = dict[str, object]

FLOATS = {"float32", "float64", "bfloat16", "float16"}
SUPPORTED_DTYPES = FLOATS | {"int64", "int32", "int16", "int8", "uint8", "bool"}
ORDERED = {"float32", "float64", "int64", "int32", "bfloat16", "float16"}


@dataclass(frozen=True)
class Pointwise:
    """`operands` names the schema arguments that are read per element; the rest are settings."""

    arguments: tuple[str, ...]
    expression: str | Callable[[Settings], str]
    operands: int
    computes: Computes = "result"
    cost: int = 1  # in additions: what it costs to recompute

    def template(self, settings: Settings) -> str:
        return self.expression if isinstance(self.expression, str) else self.expression(settings)


@dataclass(frozen=True)
class Reduction:
    """`update` folds `{v}` into `{a}`; `initial` starts a lane; `simd` is the OpenMP reduction identifier."""

    initial: str
    update: str
    simd: str


def number(value: object, default: float) -> str:
    """A setting as an operand that the renderer writes in the computing type."""
    return f"<{float(default if value is None else value)!r}>"  # type: ignore[arg-type]


def _unary(expression: str, cost: int = 1) -> Pointwise:
    return Pointwise(("self",), expression, 1, cost=cost)


def _binary(expression: str, computes: Computes = "result", cost: int = 1) -> Pointwise:
    return Pointwise(("self", "other"), expression, 2, computes, cost)


def _alpha(sign: str) -> Pointwise:
    def expression(settings: Settings) -> str:
        alpha = settings.get("alpha", 1)
        return f"{{0}} {sign} {{1}}" if alpha == 1 else f"{{0}} {sign} {number(alpha, 1)} * {{1}}"

    return Pointwise(("self", "other", "alpha"), expression, 2)


def _clamp(settings: Settings) -> str:
    text = "{0}"
    if settings.get("min") is not None:
        text = f"at_least_{{t}}({text}, {number(settings['min'], 0)})"
    if settings.get("max") is not None:
        text = f"at_most_{{t}}({text}, {number(settings['max'], 0)})"
    return text


def _power(settings: Settings) -> str:
    exponent = settings["exponent"]
    known = {
        0: "<1.0>",
        0.5: "sqrt_{t}({0})",
        1: "{0}",
        2: "{0} * {0}",
        3: "{0} * {0} * {0}",
        4: "({0} * {0}) * ({0} * {0})",
        -0.5: "rsqrt_{t}({0})",
        -1: "<1.0> / {0}",
        -2: "<1.0> / ({0} * {0})",
    }
    assert isinstance(exponent, int | float)
    return known.get(exponent, f"pow_{{t}}({{0}}, {number(exponent, 1)})")


def _gelu(settings: Settings) -> str:
    return "gelu_tanh_{t}({0})" if settings.get("approximate") == "tanh" else "gelu_{t}({0})"


def _elu(settings: Settings) -> str:
    alpha, scale, inner = (number(settings.get(k), 1) for k in ("alpha", "scale", "input_scale"))
    return f"elu_{{t}}({{0}}, {alpha}, {scale}, {inner})"


def _softplus(settings: Settings) -> str:
    return (
        f"softplus_{{t}}({{0}}, {number(settings.get('beta'), 1)}, {number(settings.get('threshold'), 20)})"
    )


def _hardtanh(settings: Settings) -> str:
    low, high = number(settings.get("min_val"), -1), number(settings.get("max_val"), 1)
    return f"at_most_{{t}}(at_least_{{t}}({{0}}, {low}), {high})"


def _leaky_relu(settings: Settings) -> str:
    slope = number(settings.get("negative_slope"), 0.01)
    return f"where_{{t}}({{0}} > <0.0>, {{0}}, {slope} * {{0}})"


def _shrink(outside: str) -> Callable[[Settings], str]:
    def expression(settings: Settings) -> str:
        return outside.replace("LAMBDA", number(settings.get("lambd"), 0.5))

    return expression


def _ranked(settings: Settings) -> str:
    return f"ranked{'_down' if settings['smallest'] else ''}_{{t}}({{0}}, {{index}})"


def _unranked(settings: Settings) -> str:
    return f"unranked{'_down' if settings['smallest'] else ''}({{0}})"


POINTWISE: dict[str, Pointwise] = {
    "add": _alpha("+"),
    "sub": _alpha("-"),
    "rsub": Pointwise(("self", "other", "alpha"), "{1} - {0}", 2),
    "mul": _binary("{0} * {1}"),
    "div": _binary("{0} / {1}"),
    "pow": Pointwise(("self", "exponent"), _power, 1, cost=4),
    "pow_tensor": _binary("pow_{t}({0}, {1})", cost=30),
    "maximum": _binary("maximum_{t}({0}, {1})"),
    "minimum": _binary("minimum_{t}({0}, {1})"),
    "clamp": Pointwise(("self", "min", "max"), _clamp, 1),
    "clamp_min": Pointwise(("self", "min"), _clamp, 1),
    "clamp_max": Pointwise(("self", "max"), _clamp, 1),
    "clamp_tensor_min": Pointwise(("self", "min"), "maximum_{t}({0}, {1})", 2),
    "abs": _unary("abs_{t}({0})"),
    "neg": _unary("-{0}"),
    "sign": _unary("sign_{t}({0})"),
    "reciprocal": _unary("<1.0> / {0}"),
    "sqrt": _unary("sqrt_{t}({0})", 4),
    "rsqrt": _unary("rsqrt_{t}({0})", 6),
    "floor": _unary("floor_{t}({0})"),
    "ceil": _unary("ceil_{t}({0})"),
    "round": _unary("round_{t}({0})"),
    "trunc": _unary("trunc_{t}({0})"),
    "exp": _unary("exp_{t}({0})", 12),
    "exp_nonpositive": _unary("exp_nonpositive_{t}({0})", 12),
    "expm1": _unary("expm1_{t}({0})", 14),
    "log": _unary("log_{t}({0})", 16),
    "log1p": _unary("log1p_{t}({0})", 20),
    "tanh": _unary("tanh_{t}({0})", 20),
    "erf": _unary("erf_{t}({0})", 28),
    "sigmoid": _unary("sigmoid_{t}({0})", 16),
    "relu": _unary("at_least_{t}({0}, <0.0>)"),
    "gelu": Pointwise(("self", "approximate"), _gelu, 1, cost=30),
    "silu": _unary("{0} * sigmoid_{t}({0})", 16),
    "silu_backward": Pointwise(
        ("grad_output", "self"),
        "{0} * (sigmoid_{t}({1}) * (<1.0> + {1} * (<1.0> - sigmoid_{t}({1}))))",
        2,
        cost=18,
    ),
    "mish": _unary("mish_{t}({0})", 40),
    "softplus": Pointwise(("self", "beta", "threshold"), _softplus, 1, cost=30),
    "elu": Pointwise(("self", "alpha", "scale", "input_scale"), _elu, 1, cost=16),
    "leaky_relu": Pointwise(("self", "negative_slope"), _leaky_relu, 1),
    "hardtanh": Pointwise(("self", "min_val", "max_val"), _hardtanh, 1),
    "relu6": _unary("at_most_{t}(at_least_{t}({0}, <0.0>), <6.0>)"),
    "hardsigmoid": _unary("hardsigmoid_{t}({0})", 3),
    "hardswish": _unary("{0} * hardsigmoid_{t}({0})", 4),
    "hardshrink": Pointwise(
        ("self", "lambd"), _shrink("where_{t}(({0} >= -LAMBDA) & ({0} <= LAMBDA), <0.0>, {0})"), 1
    ),
    "softshrink": Pointwise(
        ("self", "lambd"),
        _shrink("where_{t}({0} > LAMBDA, {0} - LAMBDA, where_{t}({0} < -LAMBDA, {0} + LAMBDA, {0} * <0.0>))"),
        1,
    ),
    "carried": _unary("where_{t}(step == 0, {0}, {before})"),
    "position": _binary("where_i32(({0} == {1}) | ({0} != {0}), {index}, 2147483647)", "operands"),
    "ranked": Pointwise(("self",), _ranked, 1, "operands", cost=8),
    "unranked": Pointwise(("self",), _unranked, 1, "operands", cost=4),
    "place": _unary("place_of({0})"),
    "take": _binary("{0}", cost=4),  # from a table, the element at an index
    "where": Pointwise(("condition", "self", "other"), "where_{t}({0}, {1}, {2})", 3),
    "convert": _unary("{0}"),
    "copy": _unary("{0}"),
    "eq": _binary("{0} == {1}", "operands"),
    "ne": _binary("{0} != {1}", "operands"),
    "lt": _binary("{0} < {1}", "operands"),
    "le": _binary("{0} <= {1}", "operands"),
    "gt": _binary("{0} > {1}", "operands"),
    "ge": _binary("{0} >= {1}", "operands"),
    "isnan": Pointwise(("self",), "{0} != {0}", 1, "operands"),
    "isinf": Pointwise(("self",), "abs_{t}({0}) == <inf>", 1, "operands"),
    "logical_not": Pointwise(("self",), "{0} == <0.0>", 1, "operands"),
    "logical_and": _binary("({0} != <0.0>) & ({1} != <0.0>)", "operands"),
    "logical_or": _binary("({0} != <0.0>) | ({1} != <0.0>)", "operands"),
    "bitwise_not": _unary("bitwise_not_{t}({0})"),
    "bitwise_and": _binary("{0} & {1}"),
    "bitwise_or": _binary("{0} | {1}"),
    "bitwise_xor": _binary("{0} ^ {1}"),
}

# Overloads that are an operator of their own.
OVERLOADS = {
    "aten.pow.Tensor_Tensor": "pow_tensor",
    "aten.clamp.Tensor": "clamp_tensor_min",
    "aten.clamp_min.Tensor": "clamp_tensor_min",
    "aten._to_copy.default": "convert",
}
# Overloads of listed operators that mean something else.
UNSUPPORTED = {"aten.pow.Scalar", "aten.clamp_max.Tensor", "aten.div.Tensor_mode", "aten.div.Scalar_mode"}

REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction("0", "{a} + {v}", "+"),
    "amax": Reduction("lowest_{t}", "maximum_{t}({a}, {v})", "max"),
    "amin": Reduction("highest_{t}", "minimum_{t}({a}, {v})", "min"),
    "prod": Reduction("1", "{a} * {v}", "*"),
    "any": Reduction("false", "{a} | {v}", "||"),
    "all": Reduction("true", "{a} & {v}", "&&"),
    "first": Reduction("highest_{t}", "minimum_{t}({a}, {v})", "min"),  # smallest index; never NaN
}


def pointwise_name(op: str) -> str | None:
    """The table's key for an ATen operator such as "aten.add.Tensor"."""
    if op in UNSUPPORTED:
        return None
    key = OVERLOADS.get(op, op.split(".")[1] if op.startswith("aten.") else "")
    return key if key in POINTWISE else None


def promoted(dtypes: Sequence[str]) -> str:
    """The common dtype of operands."""
    common = reduce(torch.promote_types, (getattr(torch, name) for name in dtypes))
    return str(common).removeprefix("torch.")
