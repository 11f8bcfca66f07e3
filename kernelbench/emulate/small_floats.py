"""bf16 and fp8 in Triton's interpreter, which treats their bits as integers, and TF32 in its products.

Operations on them are computed in float32 and rounded once, to nearest even as chips do.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kernelwright.kernelbench.emulate.findings import Unsupported

Array = np.ndarray[Any, Any]
# By the name that Triton gives them.
_SMALL = {
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
_NATIVE = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift)
_TF32_DROPS = 13  # of the 23 bits of a float32's significand


def _name(dtype: Any) -> str:
    name = getattr(dtype.scalar, "name", "")
    if name == "fp8e4b15":
        raise Unsupported("fp8e4b15")
    return str(name)


def is_small(dtype: Any) -> bool:
    return _name(dtype) in _SMALL


def decoded(data: Array, dtype: Any) -> Array:
    """Return the values of small floats stored as bits, in float32; other data is unchanged."""
    kind = _SMALL.get(_name(dtype))
    if kind is None:
        return data
    bits = torch.from_numpy(np.array(data))  # a copy: what was broadcast cannot be seen as another type
    return bits.view(kind).float().numpy()


def encoded(values: Array, dtype: Any, to_zero: bool = False) -> Array:
    """Round to nearest even, or towards zero, to bits of the type; fp8 saturates at its largest value."""
    kind = _SMALL.get(_name(dtype))
    if kind is None:
        native = values.astype(_NATIVE[_name(dtype)])
        if not to_zero:
            return native
        return np.where(np.abs(native) > np.abs(values), np.nextafter(native, native.dtype.type(0)), native)
    exact = torch.from_numpy(np.array(values, dtype=np.float32))
    if kind.itemsize == 1:
        exact = exact.clamp(torch.finfo(kind).min, torch.finfo(kind).max)
    rounded = exact.to(kind)
    bits = rounded.view(torch.uint8 if kind.itemsize == 1 else torch.uint16).numpy()
    if to_zero:
        bits = bits - (rounded.float().abs() > exact.abs()).numpy().astype(bits.dtype)
    return bits


def _as_tf32(data: Array) -> Array:
    """Round float32 to the significand that tensor cores read, to nearest even."""
    bits = np.ascontiguousarray(data).view(np.uint32)
    half = np.uint32((1 << (_TF32_DROPS - 1)) - 1)
    odd = (bits >> np.uint32(_TF32_DROPS)) & np.uint32(1)
    rounded = (bits + half + odd) & np.uint32(~((1 << _TF32_DROPS) - 1) & 0xFFFFFFFF)
    return np.where(np.isfinite(data), rounded.view(np.float32), data)


def patch(interpreter: Any) -> None:
    """Fix `triton.runtime.interpreter`."""
    builder, handle, ir = interpreter.InterpreterBuilder, interpreter.TensorHandle, interpreter._ir
    binary, ternary, unary, fma = builder.binary_op, builder.ternary_op, builder.unary_op, builder.create_fma
    cast, atomic = builder.cast_impl, builder.create_atomic_rmw

    def computed(operation: Callable[..., Array], *operands: Any) -> Any:
        dtype = operands[-1].dtype.scalar
        result = operation(*(decoded(each.data, each.dtype) for each in operands))
        return handle(result if result.dtype == bool else encoded(result, dtype), dtype)

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Callable[..., Array]) -> Any:
        if is_small(lhs.dtype) and op not in _BITWISE:
            return computed(op, lhs, rhs)
        return binary(self, lhs, rhs, op)

    def ternary_op(self: Any, lhs: Any, rhs: Any, other: Any, op: Callable[..., Array]) -> Any:
        if is_small(other.dtype) and op is np.clip:
            return computed(op, lhs, rhs, other)
        return ternary(self, lhs, rhs, other, op)

    def unary_op(self: Any, arg: Any, op: Callable[..., Array]) -> Any:
        return computed(op, arg) if is_small(arg.dtype) else unary(self, arg, op)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if is_small(z.dtype):
            return computed(lambda a, b, c: a * b + c, x, y, z)
        return fma(self, x, y, z)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if not (is_small(src.dtype) or is_small(dst_type)):
            return cast(self, src, dst_type)
        values = decoded(src.data, src.dtype)
        if is_small(dst_type):
            return handle(encoded(values, dst_type), dst_type.scalar)
        return handle(values.astype(interpreter._get_np_dtype(dst_type)), dst_type.scalar)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        to_zero = rounding == ir.ROUNDING_MODE.RTZ
        return handle(encoded(decoded(src.data, src.dtype), dst_type, to_zero), dst_type.scalar)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        left, right = decoded(a.data, a.dtype), decoded(b.data, b.dtype)
        if precision == ir.INPUT_PRECISION.TF32 and left.dtype == np.float32 and not is_small(a.dtype):
            left, right = _as_tf32(left), _as_tf32(right)
        return handle(np.matmul(left, right, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        if not is_small(val.dtype):
            return atomic(self, op, ptr, val, mask, sem, scope)
        if op != ir.ATOMIC_OP.FADD:
            raise Unsupported(f"an atomic {op} of {val.dtype.scalar}")
        before = np.array(val.data)
        for at in np.ndindex(ptr.data.shape):  # one after the other: several may be at one address
            if not mask.data[at]:
                continue
            where, there = ptr.data[at].reshape(1), np.ones(1, bool)
            old = interpreter._interpreter.load(where, there, before[at].reshape(1), before.dtype)
            total = decoded(old, val.dtype) + decoded(val.data[at].reshape(1), val.dtype)
            interpreter._interpreter.store(where, encoded(total, val.dtype), there)
            before[at] = old[0]
        return handle(before, val.dtype.scalar)

    def get_bf16(self: Any, value: float) -> Any:
        bf16 = interpreter.tl.bfloat16
        return handle(encoded(np.array([value], np.float32), bf16), bf16)

    for function in (
        binary_op,
        ternary_op,
        unary_op,
        create_fma,
        cast_impl,
        create_fp_to_fp,
        create_dot,
        create_atomic_rmw,
        get_bf16,
    ):
        setattr(builder, function.__name__, function)
