"""Replacement of kernelwright's `jit` in a package: its libraries are already built and loaded from there."""

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
    """Return a library's name: a hash of its C++ and its author's flags."""
    text = "\0".join((source, *flags))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


class LoadedLibrary:
    """A shared object; each of its functions is an attribute. Raises OSError if it cannot be loaded."""

    def __init__(self, path: Path, functions: Mapping[str, Mapping[str, Any]]) -> None:
        import torch  # noqa: F401 - whose OpenMP runtime the kernels share

        loaded = ctypes.CDLL(str(path))
        self.__dict__.update({name: _bound(loaded[name], words) for name, words in functions.items()})


def compile_cpp(source: str, flags: Sequence[str] = (), *, timeout_s: float = 0.0) -> LoadedLibrary:
    """Return the library built from this source. Raises ImportError if there is none."""
    named = key(source, [flags] if isinstance(flags, str) else flags)
    functions = _built().get(named)
    if functions is None:
        raise ImportError("the C++ in this package differs from the source of its libraries; reinstall it")
    return LoadedLibrary(FOLDER / f"{named}.so", functions)


@cache
def _built() -> dict[str, dict[str, dict[str, Any]]]:
    import json

    found: dict[str, dict[str, dict[str, Any]]] = json.loads((FOLDER / "functions.json").read_text())
    return found


def _bound(function: Any, words: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function of tensors, whose addresses it passes, and numbers.

    Raises TypeError for a tensor that the C++ would misread: of another dtype than the parameter's, strided,
    or not on the CPU. Inputs of a kernel are inside its envelope, but results of its own torch calls depend
    on the state of torch, on autocast say, and a float32 pointer to bfloat16 numbers reads beyond their end.
    The tests are compiled into one expression, which takes less than 0.2 µs a tensor.
    """
    import torch

    parameters = words["parameters"]  # (type, how many pointers, dtypes of what they may point to)
    function.argtypes = [
        ctypes.c_void_p if pointers else _C_TYPES[type_] for type_, pointers, _ in parameters
    ]
    function.restype = _C_TYPES[words["returns"]]
    names = [f"a{place}" for place in range(len(parameters))]
    values: dict[str, Any] = {"function": function, "addresses": _addresses, "refuse": _refuse}
    values |= {"plain": (torch.Tensor, torch.nn.Parameter), "forms": parameters}
    tests = []
    for place, (_, pointers, dtypes) in enumerate(parameters):
        values[f"dtypes{place}"] = tuple(getattr(torch, name) for name in dtypes)
        if pointers == 1:
            tests.append(_usual(names[place], place, dtypes))
        elif pointers:
            tests.append(f"all([{_usual('t', place, dtypes)} for t in {names[place]}])")
    given = ", ".join(names)
    passed = ", ".join(_passed(name, form[1]) for name, form in zip(names, parameters, strict=True))
    body = f"    return function({passed})\n"
    if tests:
        body = f"    if not ({' and '.join(tests)}): refuse(forms, ({given},))\n{body}"
    exec(f"def call({given}):\n{body}", values)
    call: Callable[..., Any] = values["call"]
    return call


def _usual(name: str, place: int, dtypes: Sequence[str]) -> str:
    """Return an expression that tests for a plain contiguous CPU tensor, of one of these dtypes if any."""
    same = f"is dtypes{place}[0]" if len(dtypes) == 1 else f"in dtypes{place}"
    dtype = f"{name}.dtype {same} and " if dtypes else ""
    return f"type({name}) in plain and {dtype}{name}.is_cpu and {name}.is_contiguous()"


def _refuse(forms: Sequence[tuple[str, int, Sequence[str]]], given: Sequence[Any]) -> None:
    wanted = [f"{type_}{'*' * pointers}" for type_, pointers, _ in forms]
    found = "; ".join(f"{what}: {_form(value)}" for what, value in zip(wanted, given, strict=True))
    raise TypeError(f"expected contiguous CPU tensors of the kernel's dtypes, got {found}")


def _form(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(dict.fromkeys(map(_form, value)))}]"
    if not hasattr(value, "dtype"):
        return type(value).__name__
    strides = "contiguous" if value.is_contiguous() else f"strides {tuple(value.stride())}"
    return f"{type(value).__name__} of {value.dtype} on {value.device}, {strides}"


def _passed(name: str, pointers: int) -> str:
    return (name, f"{name}.data_ptr()", f"addresses({name})")[pointers]


def _addresses(tensors: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
