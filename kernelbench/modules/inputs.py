"""Example inputs as they are typed: `8,128,256:bf16`, `8,128:int64<32000`, `mask=8,128:bool`, `0.5`.

`B,L,256:bf16` has axes of any length: names, whose values are given apart.
"""

import ast
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelwright.kernelbench.errors import UsageError

FLOATS = ("float32", "float16", "bfloat16", "float64")
_MOST = {"int64": 2**63, "int32": 2**31, "int16": 2**15, "int8": 2**7, "uint8": 2**8}  # and below
_DTYPES = (*FLOATS, *_MOST, "bool")
_SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64", "float": "float32"}
_SHORT |= {"half": "float16", "double": "float64", "int": "int64", "long": "int64"}
_HOW = "give SIZES[:DTYPE][<LIMIT], such as 8,128,256:bf16 or 8,128:int64<32000, or a constant such as 0.5"
_CONSTANT = "constant"  # in the place of a dtype, for positive integers, which else are sizes


@dataclass(frozen=True)
class InputSpec:
    """A tensor of random numbers, or a constant where `dtype` is empty; `name`: of a keyword."""

    name: str = ""
    shape: tuple[int | str, ...] = ()  # a name: an axis of any length
    dtype: str = ""
    limit: int = 2  # integers are drawn from 0 to below it
    constant: Any = None

    def at(self, sizes: Mapping[str, int]) -> "InputSpec":
        """Return the input where named axes have these lengths."""
        return replace(self, shape=tuple(sizes.get(n, n) if isinstance(n, str) else n for n in self.shape))


def names_of(specs: Sequence[InputSpec]) -> tuple[str, ...]:
    """Return the names of axes, each once."""
    return tuple(dict.fromkeys(size for spec in specs for size in spec.shape if isinstance(size, str)))


def parse(words: Sequence[str]) -> list[InputSpec]:
    """Return the inputs that these words stand for. Raises UsageError."""
    found = [_parsed(word) for word in words]
    names = [each.name for each in found if each.name]
    if repeated := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError(f"--input {repeated} is given twice", "give it once")
    if "" in [each.name for each in found][len(found) - len(names) :]:
        raise UsageError("an --input without a name follows one with a name", "give those with names last")
    return found


def _parsed(text: str) -> InputSpec:
    named = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=(.*)", text, re.DOTALL)
    name, word = (named[1], named[2]) if named else ("", text)
    literal, colon, kind = word.rpartition(":")
    wanted = colon and kind.strip() == _CONSTANT
    try:
        value = ast.literal_eval((literal if wanted else word).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = ()
    is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if isinstance(value, bool | int | float | str | None) and (wanted or not is_size):
        return InputSpec(name, constant=value)
    match = re.fullmatch(r"([\w,\s]*)(?::\s*([\w.]+))?\s*(?:<\s*(\d+))?\s*", word)
    if match is None:
        raise UsageError(f"invalid --input {text}", _HOW)
    sizes = [size for size in re.split(r"[,\s]+|(?<=\d)x(?=\d)", match[1]) if size and size != "x"]
    if any(not size.isdecimal() and (not size.isidentifier() or keyword.iskeyword(size)) for size in sizes):
        raise UsageError(f"invalid --input {text}", _HOW)
    shape = tuple(int(size) if size.isdecimal() else size for size in sizes)
    if not all(shape) or (not shape and match[2] is None):
        raise UsageError(f"invalid --input {text}", _HOW)
    dtype = (match[2] or ("int64" if match[3] else "float32")).removeprefix("torch.")
    dtype = _SHORT.get(dtype, dtype)
    if dtype not in _DTYPES:
        raise UsageError(f"invalid --input {text}: unknown dtype {match[2]}", f"use {', '.join(_DTYPES)}")
    if dtype not in _MOST:
        if match[3]:
            raise UsageError(f"invalid --input {text}: <{match[3]} is for integers", f"use :int64<{match[3]}")
        return InputSpec(name, shape, dtype)
    if not match[3]:
        raise UsageError(
            f"invalid --input {text}: integers need a limit", f"give {text}<1000 for 0 to 999, say"
        )
    limit = int(match[3])
    if not 1 <= limit <= _MOST[dtype]:
        raise UsageError(f"invalid --input {text}: {dtype} holds no such limit", f"use <1 to <{_MOST[dtype]}")
    return InputSpec(name, shape, dtype, limit)
