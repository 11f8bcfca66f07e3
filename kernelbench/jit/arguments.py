"""Conversion of one Python argument for a C parameter, or a one-line reason why it does not fit."""

import ctypes
import operator
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

import torch

from kernelwright.kernelbench.jit.errors import ArgumentError
from kernelwright.kernelbench.jit.signature import INTEGERS, Parameter

Converter = Callable[[Any], Any]

MOST_FLOAT = 3.4028234663852886e38  # of float32; beyond, a C float is infinite
# Other subclasses (fake, distributed, lazy) hold no plain memory behind their data pointer.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})

_ONE_BYTE_FLOATS = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
_SIXTEEN_BITS = frozenset({torch.float16, torch.bfloat16})

# What a pointer to each C type takes; a void* takes every dtype and is not listed.
DTYPES: dict[str, frozenset[torch.dtype]] = {
    "float": frozenset({torch.float32}),
    "double": frozenset({torch.float64}),
    "half": frozenset({torch.float16}),
    "bfloat16": frozenset({torch.bfloat16}),
    "bool": frozenset({torch.bool}),
    "int8": frozenset({torch.int8}),
    "uint8": frozenset({torch.uint8, torch.bool}) | _ONE_BYTE_FLOATS,
    "int16": frozenset({torch.int16}) | _SIXTEEN_BITS,
    "uint16": frozenset({torch.uint16}) | _SIXTEEN_BITS,
    "int32": frozenset({torch.int32}),
    "uint32": frozenset({torch.uint32}),
    "int64": frozenset({torch.int64}),
    "uint64": frozenset({torch.uint64}),
    "complex64": frozenset({torch.complex64}),
    "complex128": frozenset({torch.complex128}),
    **{f"float{n}": frozenset({torch.float32}) for n in (2, 3, 4)},  # CUDA's vectors
    **{f"int{n}": frozenset({torch.int32}) for n in (2, 3, 4)},
    **{f"double{n}": frozenset({torch.float64}) for n in (2, 3, 4)},
    "half2": frozenset({torch.float16}),
    "bfloat162": frozenset({torch.bfloat16}),
    "e4m3": frozenset({torch.float8_e4m3fn}),
    "e5m2": frozenset({torch.float8_e5m2}),
}


def converter(function: str, parameter: Parameter, device: str = "cpu") -> Converter:
    """Return the check and conversion for one parameter; its result suits the parameter's ctypes type.

    `device`: the one that tensors must be on, "cpu" or "cuda:0". A tensor that requires grad is accepted:
    autograd does not see the call, which is the caller's business. The converter raises ArgumentError on
    anything that does not fit.
    """
    where = f"{function}: parameter {parameter.name!r} ({parameter.text})"
    if parameter.pointers == 2:
        return _several(where, parameter.type, device)
    if parameter.pointers:
        return _pointer(where, parameter.type, device)
    if parameter.type in INTEGERS:
        return _integer(where, parameter.type)
    return _boolean(where) if parameter.type == "bool" else _floating(where, parameter.type)


def integer_range(type_: str) -> tuple[int, int]:
    """Return the least and the largest value of a C integer type such as "uint8"."""
    bits = INTEGERS[type_]
    return (0, 2**bits - 1) if type_.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _pointer(where: str, type_: str, device: str) -> Converter:
    dtypes = DTYPES.get(type_)

    def convert(value: Any) -> int:
        problem = _why_no_pointer(value, dtypes, device)
        if problem:
            raise ArgumentError(f"{where}: {problem}")
        try:
            address: int = value.data_ptr()
        except RuntimeError as error:  # tensors inside vmap or functionalization
            raise ArgumentError(f"{where}: the tensor has no memory ({error})") from error
        if not address and value.numel():
            raise ArgumentError(f"{where}: the memory of this tensor of shape {tuple(value.shape)} was freed")
        return address

    return convert


def _several(where: str, type_: str, device: str) -> Converter:
    """Return a converter of a sequence of tensors to an array of their addresses."""
    address = _pointer(where, type_, device)

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) or not isinstance(value, Iterable):
            raise ArgumentError(f"{where}: expected a sequence of tensors, got {_shown(value)}")
        found = [address(tensor) for tensor in value]
        return (ctypes.c_void_p * len(found))(*found)

    return convert


def _why_no_pointer(value: Any, dtypes: frozenset[torch.dtype] | None, device: str) -> str:
    kind = type(value).__name__
    if not isinstance(value, torch.Tensor):
        hint = "; pass the tensor itself, not its data_ptr()" if isinstance(value, int) else ""
        return f"expected a tensor, got {kind}{hint}"
    if type(value) not in PLAIN:
        return f"expected a plain torch.Tensor, got the subclass {kind}"
    if str(value.device) != device:
        return f"expected a tensor on {device}, got one on {value.device}"
    if dtypes is not None and value.dtype not in dtypes:
        expected = " or ".join(sorted(str(dtype) for dtype in dtypes))
        return f"expected a tensor of {expected}, got {value.dtype}"
    if value.layout is not torch.strided:
        return f"expected a dense tensor, got layout {value.layout}"
    if value.is_neg() or value.is_conj():
        return "got a lazy conjugate or negative view; call .resolve_conj().resolve_neg() first"
    if not value.is_contiguous():
        got = f"shape {tuple(value.shape)} with strides {value.stride()}"
        return f"expected a contiguous tensor, got {got}; call .contiguous() first"
    return ""


def _integer(where: str, type_: str) -> Converter:
    low, high = integer_range(type_)

    def convert(value: Any) -> int:
        if isinstance(value, torch.Tensor):
            raise ArgumentError(f"{where}: expected an integer, got a tensor; pass int(x) or x.item()")
        try:
            number = operator.index(value)
        except TypeError:
            raise ArgumentError(f"{where}: expected an integer, got {_shown(value)}") from None
        if not low <= number <= high:
            raise ArgumentError(f"{where}: expected {low} to {high}, got {number}")
        return number

    return convert


def _floating(where: str, type_: str) -> Converter:
    def convert(value: Any) -> float:
        if type(value) is not bool and isinstance(value, Real):  # int and numpy's numbers too
            try:
                return ctypes.c_float(float(value)).value if type_ == "float" else float(value)
            except OverflowError:
                raise ArgumentError(f"{where}: got an integer too large for a floating number") from None
        hint = "; pass float(x) or x.item()" if isinstance(value, torch.Tensor) else ""
        raise ArgumentError(f"{where}: expected a number, got {_shown(value)}{hint}")

    return convert


def _boolean(where: str) -> Converter:
    def convert(value: Any) -> bool:
        if isinstance(value, int) and value in (0, 1):
            return bool(value)
        raise ArgumentError(f"{where}: expected a bool, got {_shown(value)}")

    return convert


def _shown(value: object) -> str:
    kind = type(value).__name__
    return f"{kind} {value!r:.40}" if isinstance(value, (bool, int, float, str)) else kind
