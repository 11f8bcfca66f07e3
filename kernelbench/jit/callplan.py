"""The Python function behind `lib.softmax`: one generated test for the usual arguments, then the call.

A call may cost as much as the small kernel behind it, so the checks of all parameters are compiled into one
expression per function, which nearly halves the cost of calling a converter for each. Arguments that the
expression does not accept go through the converters of `arguments`, which either accept them after all (a
numpy integer) or raise the ArgumentError.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from kernelwright.kernelbench.jit.arguments import DTYPES, MOST_FLOAT, PLAIN, converter, integer_range
from kernelwright.kernelbench.jit.errors import ArgumentError
from kernelwright.kernelbench.jit.signature import INTEGERS, Parameter, Signature

C_TYPES: dict[str, Any] = {
    "void": None,
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    **{name: getattr(ctypes, f"c_{name}") for name in INTEGERS},
}


def typed(foreign: Any, signature: Signature) -> Any:
    """Return `foreign`, a function of a ctypes library, with the types of its signature, if it has any."""
    if signature.problem:
        return foreign
    foreign.argtypes = [ctypes.c_void_p if p.pointers else C_TYPES[p.type] for p in signature.parameters]
    foreign.restype = C_TYPES[signature.returns]
    return foreign


def bind(signature: Signature, foreign: Callable[..., Any], device: str = "cpu") -> Callable[..., Any]:
    """Return a function that checks its arguments and calls `foreign` with addresses and numbers.

    `device`: of tensors, "cpu" or "cuda:0". It raises ArgumentError before the call, and returns what
    `foreign` does.
    """
    if signature.problem:
        return _named(_unusable(signature), signature)
    names: dict[str, Any] = {"foreign": foreign, "plain": PLAIN, "array": _array}
    names["checked"] = _checked(signature, foreign, device)
    for index, parameter in enumerate(signature.parameters):
        if parameter.pointers and parameter.type in DTYPES:
            dtypes = DTYPES[parameter.type]
            names[f"dtypes{index}"] = next(iter(dtypes)) if len(dtypes) == 1 else dtypes
    exec(_plan(signature.parameters, device), names)  # the text holds nothing of the candidate's
    return _named(names["call"], signature)


def _plan(parameters: tuple[Parameter, ...], device: str) -> str:
    tests = " and ".join(_test(p, i, device) for i, p in enumerate(parameters)) or "True"
    passed = ", ".join(f"p{i}" if p.pointers else f"a{i}" for i, p in enumerate(parameters))
    unpack = "".join(f"a{i}, " for i in range(len(parameters)))
    return f"""
def call(*arguments):
    if len(arguments) == {len(parameters)}:
        {f"{unpack}= arguments" if unpack else "pass"}
        try:
            usual = {tests}
        except RuntimeError:  # a tensor without memory, such as a sparse one
            usual = False
        if usual:
            return foreign({passed})
    return checked(arguments)
"""


def _test(parameter: Parameter, index: int, device: str) -> str:
    """Return an expression that is true for the usual argument; a pointer's sets `p<index>`."""
    a = f"a{index}"
    if parameter.pointers == 2:
        usual = _usual_tensor(parameter, index, "t", device)
        found = f"(p{index} := [t.data_ptr() for t in {a} if {usual}])"
        return f"type({a}) in (list, tuple) and len({a}) == len{found} and (p{index} := array(p{index}))"
    if parameter.pointers:
        usual = _usual_tensor(parameter, index, a, device)
        return f"{usual} and ((p{index} := {a}.data_ptr()) or not {a}.numel())"
    if parameter.type in INTEGERS:
        low, high = integer_range(parameter.type)
        return f"type({a}) is int and {low} <= {a} <= {high}"
    if parameter.type == "float":
        return f"type({a}) is float and -{MOST_FLOAT} <= {a} <= {MOST_FLOAT}"
    return f"type({a}) is {'bool' if parameter.type == 'bool' else 'float'}"


def _usual_tensor(parameter: Parameter, index: int, name: str, device: str) -> str:
    there = "is_cpu" if device == "cpu" else f"get_device() == {device.removeprefix('cuda:')}"
    dtype = f"{name}.dtype {_dtype_test(parameter.type, index)} and " if parameter.type in DTYPES else ""
    conjugate = f" and not {name}.is_conj()" if parameter.type in ("void", "complex64", "complex128") else ""
    return (
        f"type({name}) in plain and {dtype}{name}.{there} and {name}.is_contiguous() and "
        f"not {name}.is_neg(){conjugate}"
    )


def _array(addresses: list[int]) -> Any:
    """Return the array for a pointer to pointers; false if any of them is null."""
    return all(addresses) and (ctypes.c_void_p * len(addresses))(*addresses)


def _dtype_test(type_: str, index: int) -> str:
    return f"{'is' if len(DTYPES[type_]) == 1 else 'in'} dtypes{index}"


def _checked(
    signature: Signature, foreign: Callable[..., Any], device: str
) -> Callable[[tuple[Any, ...]], Any]:
    converters = tuple(converter(signature.name, parameter, device) for parameter in signature.parameters)

    def call(arguments: tuple[Any, ...]) -> Any:
        if len(arguments) != len(converters):
            raise ArgumentError(f"{signature} takes {len(converters)} arguments, got {len(arguments)}")
        return foreign(*[convert(value) for convert, value in zip(converters, arguments, strict=True)])

    return call


def _unusable(signature: Signature) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        raise ArgumentError(f"{signature.name} cannot be called from Python: {signature.problem}")

    return call


def _named(call: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    call.__name__ = call.__qualname__ = signature.name
    call.__doc__ = str(signature)
    return call
