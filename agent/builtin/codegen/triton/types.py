"""Triton vocabulary: types, literals, reserved words, the functions of its own language."""

import keyword
import math

from kernelwright.agent.builtin.ir import text
from kernelwright.agent.builtin.ir.text import SMALL_FLOATS, whole
from kernelwright.kernelbench.free_sizes.size import is_free

VALUE = {
    "float32": "tl.float32",
    "float64": "tl.float64",
    "int64": "tl.int64",
    "int32": "tl.int32",
    "int16": "tl.int16",
    "int8": "tl.int8",
    "uint8": "tl.uint8",
    "bool": "tl.int1",
    "bfloat16": "tl.float32",  # computed in float
    "float16": "tl.float32",
    "float8_e4m3fn": "tl.float32",
    "float8_e5m2": "tl.float32",
}
BUILTIN = {name: f"tl.{name}" for name in "exp log erf sqrt rsqrt floor ceil abs where".split()}
BUILTIN |= {"exp_nonpositive": "tl.exp", "pow": "power", "round": "round_to_even"}
LOWEST = {"int64": str(-(2**63)), "int32": str(-(2**31)), "uint8": "0"}
HIGHEST = {"int64": str(2**63 - 1), "int32": str(2**31 - 1), "uint8": "255"}

_NAMES = (
    "tl triton float range min program row rows_in j columns_in i inside down along outer part block step "
    "start column depth tile first top beside"
)
RESERVED = frozenset(keyword.kwlist) | frozenset(_NAMES.split())
_SINGLE = 1 << 24  # integers below are floats as they are


def value_type(dtype: str) -> str:
    return "float32" if dtype in SMALL_FLOATS else dtype


def is_negative_zero(value: float | int | bool) -> bool:
    return value == 0 and math.copysign(1, value) < 0


def literal(value: float | int | bool, dtype: str) -> str:
    """Return a number as a value of a type. Conversion is Python's: for an integer, floats are cut."""
    if is_free(value):
        return f"{value}.to({VALUE[dtype]})"
    if dtype == "bool":
        return str(bool(value))
    if value_type(dtype) in ("float32", "float64"):
        if math.isnan(value) or math.isinf(value):
            return f'float("{float(value)}")'
        if is_negative_zero(value):  # Triton takes it for 0.0
            return f"(tl.full([], -1.0, {VALUE[dtype]}) * 0.0)"
        digits = repr(float(value))
        exact = float(value).is_integer() and abs(value) < _SINGLE
        if dtype == "float64" and not exact:
            return f"tl.full([], {digits}, tl.float64)"
        return digits if value >= 0 else f"({digits})"
    number = whole(value, dtype)
    return str(number) if number >= 0 else f"({number})"


def power_of_two(number: int) -> int:
    """Return the least that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


class PythonLines(text.Lines):
    """Python, whose blocks only go by their indentation."""

    def open(self, head: str) -> None:
        self.add(f"{head}:")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
