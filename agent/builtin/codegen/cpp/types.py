"""C++ vocabulary: types, literals, reserved words, names of functions."""

from kernelwright.agent.builtin.codegen.c_like import CTypes
from kernelwright.agent.builtin.ir import text

STORAGE = {
    "float32": "float",
    "float64": "double",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "uint8_t",  # g++ does not vectorise loads of bool
    "bfloat16": "uint16_t",
    "float16": "uint16_t",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
}
VALUE = {**STORAGE, "bool": "bool", **dict.fromkeys(text.SMALL_FLOATS, "float")}
SUFFIX = {"float": "f32", "double": "f64", "bool": "b"}
SUFFIX |= {"int64_t": "i64", "int32_t": "i32", "int16_t": "i16", "int8_t": "i8", "uint8_t": "u8"}
LOWEST = {"float": "-INFINITY", "double": "-INFINITY", "int64_t": "INT64_MIN", "int32_t": "INT32_MIN"}
HIGHEST = {"float": "INFINITY", "double": "INFINITY", "int64_t": "INT64_MAX", "int32_t": "INT32_MAX"}

_WORDS = """
alignas and asm auto bool break case catch char class const continue default delete do double else enum
explicit export extern false float for friend goto if inline int long mutable namespace new not operator or
private protected public register return short signed sizeof static struct switch template this throw true
try typedef union unsigned using virtual void volatile while xor
row outer i j k l m o p q j_at k_at l_at start n first next begin end chunk part step
call tile top rows
ROWS COLUMNS BLOCK BLOCKS CHUNKS PARTS NUMEL WIDTH TILE DOWN ALONG
"""
RESERVED = frozenset(_WORDS.split())  # keywords, and the names of loops and constants


def _integer(value: float, ctype: str) -> str:
    return str(text.whole(value, ctype.removesuffix("_t")))


def _function(name: str, ctype: str) -> str:
    return f"{name}_{SUFFIX[ctype]}"


def _loaded(found: str, dtype: str) -> str:
    if dtype == "bool":
        return f"({found} != 0)"
    return f"{dtype}_load({found})" if dtype in text.SMALL_FLOATS else found


def _stored(found: str, dtype: str) -> str:
    return f"{dtype}_store({found})" if dtype in text.SMALL_FLOATS else found


CPP = CTypes(STORAGE, VALUE, LOWEST, HIGHEST, RESERVED, _integer, _function, _loaded, _stored)
