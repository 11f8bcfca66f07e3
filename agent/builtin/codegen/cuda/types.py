"""CUDA C++ vocabulary: types, literals, reserved words, names of functions."""

from kernelwright.agent.builtin.codegen.c_like import CTypes
from kernelwright.agent.builtin.codegen.cuda.functions import functions
from kernelwright.agent.builtin.ir import text
from kernelwright.agent.builtin.ir.text import EIGHTS, SMALL_FLOATS

STORAGE = {
    "float32": "float",
    "float64": "double",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    "bfloat16": "__nv_bfloat16",
    "float16": "__half",
    "float8_e4m3fn": "unsigned char",
    "float8_e5m2": "unsigned char",
}
VALUE = {**STORAGE, **dict.fromkeys(SMALL_FLOATS, "float")}
LOWEST = {"float": "-INFINITY", "double": "-INFINITY", "int": "(-2147483647 - 1)"}
LOWEST["long long"] = "(-9223372036854775807LL - 1)"
HIGHEST = {"float": "INFINITY", "double": "INFINITY", "int": "2147483647"}
HIGHEST["long long"] = "9223372036854775807LL"
_CONVERSION = {"float16": ("__half2float", "__float2half_rn")}
_CONVERSION["bfloat16"] = ("__bfloat162float", "__float2bfloat16_rn")
_CONVERSION |= {dtype: (f"{dtype}_load", f"{dtype}_store") for dtype in EIGHTS}
_WHOLE = {STORAGE[dtype]: dtype for dtype in ("int64", "int32", "int16", "int8", "uint8")}

# Of CUDA's mathematical functions, by what the operators' table calls them; all others are in functions.cuh.
_MATH = {"exp_nonpositive": "exp", "round": "rint", "abs": "fabs"}
_MATH |= {
    name: name for name in "exp expm1 log log1p tanh erf sqrt rsqrt floor ceil trunc pow normcdf".split()
}
_WORDS = """
alignas and asm auto bool break case catch char class const continue default delete do double else enum
explicit export extern false float for friend goto if inline int long mutable namespace new not operator or
private protected public register return short signed sizeof static struct switch template this throw true
try typedef union unsigned using virtual void volatile while xor
threadIdx blockIdx blockDim gridDim warpSize min max
row column lane lanes columns inside i j k p block step start first top outer total join value at there turn
ROWS COLUMNS LANES EACH NUMEL BLOCKS PARTS TILE WIDE THREADS DOWN ALONG RUN
"""
# Keywords, names of functions, and those of loops and constants.
RESERVED = frozenset(
    [*_WORDS.split(), *_MATH.values(), *(f"{name}f" for name in _MATH.values()), *functions()]
)


def _integer(value: float, ctype: str) -> str:
    number = text.whole(value, _WHOLE[ctype])
    if ctype == "long long":
        return LOWEST[ctype] if number == -(2**63) else f"{number}LL"
    return LOWEST[ctype] if number == -(2**31) else str(number)


def _function(name: str, ctype: str) -> str:
    if ctype in ("float", "double") and name in _MATH:
        return _MATH[name] + ("f" if ctype == "float" else "")
    return "magnitude" if name == "abs" else name


def _loaded(found: str, dtype: str) -> str:
    return f"{_CONVERSION[dtype][0]}({found})" if dtype in SMALL_FLOATS else found


def _stored(found: str, dtype: str) -> str:
    return f"{_CONVERSION[dtype][1]}({found})" if dtype in SMALL_FLOATS else found


CUDA = CTypes(STORAGE, VALUE, LOWEST, HIGHEST, RESERVED, _integer, _function, _loaded, _stored)
