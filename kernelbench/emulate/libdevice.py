"""Functions of libdevice for Triton's interpreter, which has none, computed in double by torch.

Names: https://docs.nvidia.com/cuda/libdevice-users-guide/ ("__nv_expf" is "exp" here, as is "__nv_exp").
"""

import importlib
import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import torch

from kernelwright.kernelbench.emulate.findings import Unsupported

_AS_IN_TORCH = (
    "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 floor "
    "fmod fmax fmin hypot lgamma log log10 log1p log2 nextafter pow rsqrt sin sinh sqrt tan tanh trunc"
)
_FAST = "cos exp log log10 log2 pow sin tan"
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in _AS_IN_TORCH.split()},
    **{f"fast_{name}": getattr(torch, name) for name in _FAST.split()},
    "fabs": torch.abs,
    "abs": torch.abs,
    "llabs": torch.abs,
    "rint": torch.round,
    "nearbyint": torch.round,
    "round": lambda x: torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x)),  # halves away from zero
    "cbrt": lambda x: torch.copysign(x.abs().pow(1 / 3), x),
    "rcbrt": lambda x: 1 / torch.copysign(x.abs().pow(1 / 3), x),
    "exp10": lambda x: torch.pow(10.0, x),
    "fast_exp10": lambda x: torch.pow(10.0, x),
    "erfcx": torch.special.erfcx,
    "erfcinv": lambda x: -torch.special.ndtri(x / 2) / math.sqrt(2),
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "tgamma": lambda x: torch.lgamma(x).exp() * torch.where((x < 0) & (torch.floor(x) % 2 != 0), -1.0, 1.0),
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "sinpi": lambda x: torch.sin(math.pi * torch.remainder(x, 2)),
    "cospi": lambda x: torch.cos(math.pi * torch.remainder(x, 2)),
    "fdim": lambda x, y: (x - y).clamp(min=0),
    "fma": lambda x, y, z: x * y + z,
    "powi": torch.pow,
    "ldexp": torch.ldexp,
    "scalbn": torch.ldexp,
    "remainder": lambda x, y: x - y * torch.round(x / y),
    "rhypot": lambda x, y: 1 / torch.hypot(x, y),
    "norm3d": lambda *of: torch.stack(of).norm(dim=0),
    "rnorm3d": lambda *of: 1 / torch.stack(of).norm(dim=0),
    "norm4d": lambda *of: torch.stack(of).norm(dim=0),
    "rnorm4d": lambda *of: 1 / torch.stack(of).norm(dim=0),
    "saturate": lambda x: x.clamp(0, 1),
    "fast_fdivide": lambda x, y: x / y,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "finite": torch.isfinite,
    "signbit": torch.signbit,
    "logb": lambda x: torch.floor(torch.log2(x.abs())),
    "ilogb": lambda x: torch.floor(torch.log2(x.abs())),
    "llrint": torch.round,
    "llround": lambda x: torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x)),
    "add_rn": lambda x, y: x + y,
    "sub_rn": lambda x, y: x - y,
    "mul_rn": lambda x, y: x * y,
    "div_rn": lambda x, y: x / y,
    "rcp_rn": lambda x: 1 / x,
    "sqrt_rn": torch.sqrt,
    "rsqrt_rn": torch.rsqrt,
    **dict.fromkeys(("fmaf_rn", "fma_rn"), lambda x, y, z: x * y + z),
}  # fmt: skip
# "__nv_expf", "__nv_fsqrt_rn", "__nv_isnand": the name without what tells the type.
_SPELLINGS = (
    re.compile(r"__nv_(fast_\w+?)f?"),
    re.compile(r"__nv_(?:f|d)((?:add|sub|mul|div|rcp|sqrt|rsqrt)_rn)"),
    re.compile(r"__nv_(is(?:nan|inf)|isfinite|finite|signbit)[fd]?"),
    re.compile(r"__nv_(\w+?)f?"),
    re.compile(r"__nv_(\w+)"),
)


def function(symbol: str) -> Callable[..., torch.Tensor]:
    """Return the function of a libdevice symbol. Raises Unsupported."""
    for spelling in _SPELLINGS:
        found = spelling.fullmatch(symbol)
        if found is not None and found[1] in _FUNCTIONS:
            return _FUNCTIONS[found[1]]
    raise Unsupported(f"{symbol} of libdevice")


def patch(interpreter: Any) -> None:
    """Add the functions to `triton.runtime.interpreter` and to the modules that kernels call them from."""

    def create_extern_elementwise(
        self: Any, library: str, path: str, symbol: str, arguments: Any, result: Any, pure: bool
    ) -> Any:
        compute = function(symbol)
        dtype = interpreter._get_np_dtype(result)
        given = [torch.from_numpy(each.data.copy()) for each in arguments]
        exact = [each.double() if each.is_floating_point() else each for each in given]
        return interpreter.TensorHandle(compute(*exact).numpy().astype(dtype), result.scalar)

    interpreter.InterpreterBuilder.create_extern_elementwise = create_extern_elementwise
    with_types = importlib.import_module("triton.language.extra.cuda.libdevice")
    stubs = importlib.import_module("triton.language.extra.libdevice")
    for name, member in inspect.getmembers(with_types, inspect.isfunction):
        if interpreter.tl.core.is_builtin(member):
            setattr(with_types, name, _interpreted(member, interpreter.interpreter_semantic))
            if hasattr(stubs, name):
                setattr(stubs, name, getattr(with_types, name))


def _interpreted(member: Callable[..., Any], semantic: Any) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        return member(*arguments, **{**named, "_semantic": semantic})

    call.__name__ = member.__name__
    return call
