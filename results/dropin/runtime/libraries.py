"""Stands in for kernelwright's `jit` in a package: its libraries are built already, and loaded from there."""

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "libraries"
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


def key(source: str, flags: Sequence[str]) -> str:
    """What a library is called: a hash of its C++ and the flags of its author's choice."""
    text = "\0".join((source, *flags))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


class Library:
    """A shared object; each of its functions is an attribute. Raises OSError where it cannot be loaded."""

    def __init__(self, path: Path, functions: Mapping[str, Mapping[str, Any]]) -> None:
        import torch  # noqa: F401 - whose OpenMP runtime the kernels share

        loaded = ctypes.CDLL(str(path))
        self.__dict__.update({name: _bound(loaded[name], words) for name, words in functions.items()})


def compile_cpp(source: str, flags: Sequence[str] = (), *, timeout_s: float = 0.0) -> Library:
    """The library that was built of this source. Raises ImportError where there is none."""
    named = key(source, [flags] if isinstance(flags, str) else flags)
    functions = _built().get(named)
    if functions is None:
        raise ImportError("the C++ in this package is not what its libraries were built of; install it anew")
    return Library(FOLDER / f"{named}.so", functions)


@cache
def _built() -> dict[str, dict[str, dict[str, Any]]]:
    import json

    found: dict[str, dict[str, dict[str, Any]]] = json.loads((FOLDER / "functions.json").read_text())
    return found


def _bound(function: Any, words: Mapping[str, Any]) -> Callable[..., Any]:
    """Tensors become addresses. Nothing is checked: the envelope has looked at what comes in."""
    parameters = words["parameters"]  # (type, how many pointers)
    function.argtypes = [ctypes.c_void_p if pointers else _C_TYPES[type_] for type_, pointers in parameters]
    function.restype = _C_TYPES[words["returns"]]
    names = [f"a{place}" for place in range(len(parameters))]
    passed = ", ".join(_passed(name, pointers) for name, (_, pointers) in zip(names, parameters, strict=True))
    values: dict[str, Any] = {"function": function, "addresses": _addresses}
    exec(f"def call({', '.join(names)}): return function({passed})", values)
    call: Callable[..., Any] = values["call"]
    return call


def _passed(name: str, pointers: int) -> str:
    return (name, f"{name}.data_ptr()", f"addresses({name})")[pointers]


def _addresses(tensors: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
