"""Code that was built for a package: shared objects of C++, cubins of CUDA C++, and the functions in them."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "libraries"


def key(source: str, options: Sequence[str]) -> str:
    """Return the name of what is built: a hash of its source and its author's options."""
    text = "\0".join((source, *options))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def built(source: str, options: Sequence[str] | str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the name of what was built from this source, and its functions by name.

    Raises ImportError if the package has none.
    """
    named = key(source, [options] if isinstance(options, str) else options)
    functions = _functions().get(named)
    if functions is None:
        raise ImportError("the code in this package differs from what was built for it; reinstall it")
    return named, functions


@cache
def _functions() -> dict[str, dict[str, dict[str, Any]]]:
    import json

    found: dict[str, dict[str, dict[str, Any]]] = json.loads((FOLDER / "functions.json").read_text())
    return found


def checked(
    call: Callable[..., Any], forms: Sequence[tuple[str, int, Sequence[str]]], on: str, where: str = ""
) -> Callable[..., Any]:
    """Return `call` as a function of tensors, whose addresses it is given, and numbers.

    `forms`: (type, how many pointers, dtypes of what they may point to) of each parameter; `on`: what is true
    of a tensor that the code can read, such as "is_cpu"; `where`: the name of a parameter before all others,
    of which `on` may speak.
    Raises TypeError for a tensor that the code would misread: of another dtype than the parameter's, strided,
    or on another device. Inputs of a kernel are inside its envelope, but results of its own torch calls
    depend on the state of torch, on autocast say: through a float32 pointer to bfloat16 numbers, code reads
    beyond their end.
    The tests are compiled into one expression, which takes less than 0.2 µs a tensor.
    """
    import torch

    names = [f"a{place}" for place in range(len(forms))]
    values: dict[str, Any] = {"call": call, "addresses": _addresses, "refuse": _refuse}
    values |= {"plain": (torch.Tensor, torch.nn.Parameter), "forms": forms}
    tests = []
    for place, (_, pointers, dtypes) in enumerate(forms):
        values[f"dtypes{place}"] = tuple(getattr(torch, name) for name in dtypes)
        if pointers == 1:
            tests.append(_usual(names[place], place, dtypes, on))
        elif pointers:
            tests.append(f"all([{_usual('t', place, dtypes, on)} for t in {names[place]}])")
    given = ", ".join(names)
    passed = ", ".join(_passed(name, form[1]) for name, form in zip(names, forms, strict=True))
    body = f"    return call({passed})\n"
    if tests:
        body = f"    if not ({' and '.join(tests)}): refuse(forms, ({given},))\n{body}"
    exec(f"def function({', '.join([*([where] if where else []), *names])}):\n{body}", values)
    function: Callable[..., Any] = values["function"]
    return function


def _usual(name: str, place: int, dtypes: Sequence[str], on: str) -> str:
    """Return an expression that tests for a plain contiguous tensor, of one of these dtypes if any."""
    same = f"is dtypes{place}[0]" if len(dtypes) == 1 else f"in dtypes{place}"
    dtype = f"{name}.dtype {same} and " if dtypes else ""
    return f"type({name}) in plain and {dtype}{name}.{on} and {name}.is_contiguous()"


def _refuse(forms: Sequence[tuple[str, int, Sequence[str]]], given: Sequence[Any]) -> None:
    wanted = [f"{type_}{'*' * pointers}" for type_, pointers, _ in forms]
    found = "; ".join(f"{what}: {_form(value)}" for what, value in zip(wanted, given, strict=True))
    raise TypeError(f"expected contiguous tensors of the kernel's dtypes on its device, got {found}")


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
    import ctypes

    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
