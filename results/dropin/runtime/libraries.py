"""`compile_cpp` of a package: its shared objects are already built and loaded from there."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .built import FOLDER, built, checked

_C_TYPES = {
    "void": None,
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    **{
        f"{sign}int{bits}": getattr(ctypes, f"c_{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


class LoadedLibrary:
    """A shared object; each of its functions is an attribute. Raises OSError if it cannot be loaded."""

    def __init__(self, path: Path, functions: Mapping[str, Mapping[str, Any]]) -> None:
        import torch  # noqa: F401 - whose OpenMP runtime the kernels share

        loaded = ctypes.CDLL(str(path))
        self.__dict__.update({name: _bound(loaded[name], words) for name, words in functions.items()})


def compile_cpp(source: str, flags: Sequence[str] = (), *, timeout_s: float = 0.0) -> LoadedLibrary:
    """Return the library built from this source. Raises ImportError if there is none."""
    named, functions = built(source, flags)
    return LoadedLibrary(FOLDER / f"{named}.so", functions)


def _bound(function: Any, words: Mapping[str, Any]) -> Callable[..., Any]:
    parameters = words["parameters"]
    function.argtypes = [
        ctypes.c_void_p if pointers else _C_TYPES[type_] for type_, pointers, _ in parameters
    ]
    function.restype = _C_TYPES[words["returns"]]
    return checked(function, parameters, "is_cpu")
