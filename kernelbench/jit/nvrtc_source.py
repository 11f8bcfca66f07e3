"""Conversion of CUDA C++ for nvcc to NVRTC, which lacks standard headers and nvcc's implicit includes.

https://docs.nvidia.com/cuda/nvrtc/index.html#predefined-macros
"""

import re

# Headers of which a kernel may use no more than is declared below, or built in.
_ABSENT = """cassert cfloat climits cmath cstddef cstdint cstdio cstdlib cstring
assert.h float.h limits.h math.h stddef.h stdint.h stdio.h stdlib.h string.h
cuda.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h""".split()
_INCLUDE = re.compile(rf"^[ \t]*#[ \t]*include[ \t]*[<\"](?:{'|'.join(map(re.escape, _ABSENT))})[>\"]", re.M)
_TYPES = {
    "int8_t": "signed char",
    "int16_t": "short",
    "int32_t": "int",
    "int64_t": "long",  # as on Linux
    "intptr_t": "long",
    "uint8_t": "unsigned char",
    "uint16_t": "unsigned short",
    "uint32_t": "unsigned int",
    "uint64_t": "unsigned long",
    "uintptr_t": "unsigned long",
    "uint": "unsigned int",
    "ushort": "unsigned short",
    "ulong": "unsigned long",
}
_MACROS = {
    "INFINITY": "__int_as_float(0x7f800000)",
    "NAN": "__int_as_float(0x7fffffff)",
    "HUGE_VALF": "__int_as_float(0x7f800000)",
    "FLT_MAX": "3.402823466e+38f",
    "FLT_MIN": "1.175494351e-38f",
    "FLT_EPSILON": "1.192092896e-07f",
    "DBL_MAX": "1.7976931348623157e+308",
    "DBL_MIN": "2.2250738585072014e-308",
    "DBL_EPSILON": "2.2204460492503131e-16",
    "INT_MAX": "2147483647",
    "INT_MIN": "(-2147483647 - 1)",
    "UINT_MAX": "4294967295u",
    "LLONG_MAX": "9223372036854775807ll",
    "LLONG_MIN": "(-9223372036854775807ll - 1)",
    "M_E": "2.7182818284590452354",
    "M_LN2": "0.69314718055994530942",
    "M_LOG2E": "1.4426950408889634074",
    "M_PI": "3.14159265358979323846",
    "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.70710678118654752440",
    "M_2_SQRTPI": "1.12837916709551257390",
}
_PRELUDE = "\n".join(
    [
        *(f"typedef {type_} {name};" for name, type_ in _TYPES.items()),
        *(f"#ifndef {name}\n#define {name} {value}\n#endif" for name, value in _MACROS.items()),
        "#line 1",
    ]
)


def for_nvrtc(source: str) -> str:
    """Return the source, with the same lines, after the declarations that nvcc would provide."""
    return f"{_PRELUDE}\n{_INCLUDE.sub('', source)}"
