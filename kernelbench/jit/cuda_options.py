"""Options of `compile_cuda`: one list, with what each is for NVRTC and for the emulator's compiler.

https://docs.nvidia.com/cuda/nvrtc/index.html#supported-compile-options
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.jit.errors import BuildError

_DEFINE = re.compile(r"-D ?(?P<name>[A-Za-z_]\w*)(?:=(?P<value>[\w.+\-*/() ]*))?")
# Words of NVRTC, and of g++; -O3 is what NVRTC does anyway.
_OTHERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "-O3": ((), ()),
    "-lineinfo": (("--generate-line-info",), ()),
    "-use_fast_math": (("--use_fast_math",), ("-D__USE_FAST_MATH__",)),
    "-fmad=true": (("--fmad=true",), ()),
    "-fmad=false": (("--fmad=false",), ("-ffp-contract=off",)),
    **{f"-std=c++{year}": ((f"--std=c++{year}",), ()) for year in (14, 17)},
    "-std=c++20": (("--std=c++20",), ("-std=gnu++20",)),
}
ALLOWED_IN_WORDS = f"-DNAME=VALUE {' '.join(_OTHERS)}"


@dataclass(frozen=True)
class CudaOptions:
    """Options of a build, checked."""

    defines: dict[str, str]
    nvrtc: tuple[str, ...]
    emulation: tuple[str, ...]  # of g++


def check(options: Sequence[str]) -> CudaOptions:
    """Return the options as both compilers take them. Raises BuildError on any that is not on the list."""
    if isinstance(options, str):
        raise BuildError(f"options must be a list of strings, got the string {options!r}")
    defines: dict[str, str] = {}
    nvrtc: list[str] = []
    emulation: list[str] = []
    for option in options:
        define = _DEFINE.fullmatch(option)
        other = _OTHERS.get(re.sub("^--", "-", option))
        if define is not None:
            defines[define["name"]] = "1" if define["value"] is None else define["value"]
        elif other is not None:
            nvrtc += other[0]
            emulation += other[1]
        else:
            raise BuildError(f"unsupported option {option!r}; use {ALLOWED_IN_WORDS}")
    words = [f"-D{name}={value}" for name, value in defines.items()]
    return CudaOptions(defines, (*nvrtc, *words), (*emulation, *words))
