"""CUDA's mathematical functions in emulation keep to the errors that the CUDA C++ Programming Guide states.

https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#mathematical-functions
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernelwright.kernelbench.jit.cuda import CudaModule, compile_cuda

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there"),
]

Reference = Callable[..., np.ndarray]
ALL, POSITIVE, UNIT, TURNS = "all", "positive", "unit", "turns"  # where a function is tried
special = torch.special


def of_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Reference:
    return lambda x: function(torch.from_numpy(x)).numpy()


# name: (ulp that the guide states, reference in double precision, arguments)
FLOAT: dict[str, tuple[float, Reference, str]] = {
    "expf": (1, np.exp, ALL),
    "exp2f": (2, np.exp2, ALL),
    "exp10f": (2, lambda x: np.power(10.0, x), ALL),
    "expm1f": (1, np.expm1, ALL),
    "logf": (1, np.log, POSITIVE),
    "log2f": (1, np.log2, POSITIVE),
    "log10f": (2, np.log10, POSITIVE),
    "log1pf": (1, np.log1p, POSITIVE),
    "sqrtf": (0.5, np.sqrt, POSITIVE),
    "rsqrtf": (2, lambda x: 1 / np.sqrt(x), POSITIVE),
    "cbrtf": (1, np.cbrt, ALL),
    "rcbrtf": (1, lambda x: 1 / np.cbrt(x), ALL),
    "sinf": (2, np.sin, TURNS),
    "cosf": (2, np.cos, TURNS),
    "tanf": (4, np.tan, TURNS),
    "sinpif": (1, lambda x: np.sin(np.pi * np.fmod(x, 2.0)), UNIT),
    "cospif": (1, lambda x: np.cos(np.pi * np.fmod(x, 2.0)), UNIT),
    "asinf": (2, np.arcsin, UNIT),
    "acosf": (2, np.arccos, UNIT),
    "atanf": (2, np.arctan, ALL),
    "sinhf": (3, np.sinh, ALL),
    "coshf": (2, np.cosh, ALL),
    "tanhf": (2, np.tanh, ALL),
    "asinhf": (3, np.arcsinh, ALL),
    "acoshf": (4, np.arccosh, POSITIVE),
    "atanhf": (3, np.arctanh, UNIT),
    "erff": (2, of_torch(special.erf), ALL),
    "erfcf": (4, of_torch(special.erfc), ALL),
    "erfinvf": (2, of_torch(special.erfinv), UNIT),
    "erfcxf": (4, of_torch(special.erfcx), POSITIVE),
    "normcdff": (5, lambda x: 0.5 * of_torch(special.erfc)(-x / np.sqrt(2.0)), ALL),
    "lgammaf": (6, of_torch(special.gammaln), POSITIVE),
    "tgammaf": (5, lambda x: np.exp(of_torch(special.gammaln)(x)), "small"),
    "floorf": (0, np.floor, ALL),
    "rintf": (0, np.rint, ALL),
    "truncf": (0, np.trunc, ALL),
    "__frcp_rn": (0.5, lambda x: 1 / x, ALL),
    "__saturatef": (0, lambda x: np.where(np.isnan(x), 0.0, np.clip(x, 0.0, 1.0)), ALL),
}
FLOAT2: dict[str, tuple[float, Reference]] = {
    "powf": (4, np.power),
    "atan2f": (3, np.arctan2),
    "hypotf": (3, np.hypot),
    "rhypotf": (2, lambda x, y: 1 / np.hypot(x, y)),
    "fmodf": (0, np.fmod),
    "__fdiv_rn": (0.5, np.divide),
    "fminf": (0, np.fmin),
    "fmaxf": (0, np.fmax),
    "copysignf": (0, np.copysign),
}
# The C library's, so tanh and cbrt are within 2 and 3 where a GPU has 1.
DOUBLE: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray], str]] = {
    "exp": (1, np.exp, ALL),
    "log": (1, np.log, POSITIVE),
    "sin": (2, np.sin, TURNS),
    "tanh": (2, np.tanh, ALL),
    "sqrt": (0.5, np.sqrt, POSITIVE),
    "rsqrt": (1, lambda x: 1 / np.sqrt(x), POSITIVE),
    "cbrt": (3, np.cbrt, ALL),
    "expm1": (1, np.expm1, ALL),
}
FAST = ("__expf", "__exp10f", "__logf", "__log2f", "__log10f", "__sinf", "__cosf", "__tanf")


def kernel(name: str, type_: str, arguments: int) -> str:
    parameters = ", ".join(f"const {type_}* {each}" for each in "ab"[:arguments])
    call = f"{name}({', '.join(f'{each}[i]' for each in 'ab'[:arguments])})"
    return (
        f'extern "C" __global__ void try_{name}({parameters}, {type_}* y, int n) {{\n'
        f"    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = {call};\n}}\n"
    )


@pytest.fixture(scope="module")
def functions() -> CudaModule:
    names = [(name, "float", 1) for name in (*FLOAT, *FAST)]
    names += [(name, "float", 2) for name in (*FLOAT2, "__powf", "__fdividef")]
    names += [(name, "double", 1) for name in DOUBLE]
    return compile_cuda("".join(kernel(*each) for each in names))


def called(functions: CudaModule, name: str, *arguments: np.ndarray) -> np.ndarray:
    tensors = [torch.from_numpy(each) for each in arguments]
    y = torch.empty_like(tensors[0])
    functions.get_function(f"try_{name}")((1,), (1,), (*tensors, y, len(y)))
    return y.numpy()


def numbers(which: str, dtype: type = np.float32, count: int = 4000) -> np.ndarray:
    """Of all sizes, with denormals, zeros, infinities and NaN."""
    random = np.random.default_rng(0)
    sign = random.choice([-1.0, 1.0], count)
    if which == UNIT:
        found = sign * np.exp(-10 * random.random(count) ** 2)
    elif which == TURNS:
        found = sign * np.exp(random.uniform(-20, 11, count))
    elif which == "small":
        found = random.uniform(0.01, 20, count)
    else:
        found = np.concatenate(
            [sign * np.exp(random.uniform(-100, 88, count)), sign * random.uniform(0, 100, count)]
        )
    edges = [0.0, 1.0, 0.5, 1e-40, 1e-45, 3.4e38, np.inf, np.nan]
    edges = [0.25, 1.0] if which == "small" else [0.0, 1.0, -1.0, 0.5] if which == UNIT else edges
    found = np.concatenate([found, edges, [-edge for edge in edges if which != "small"]])
    return (np.abs(found) if which == POSITIVE else found).astype(dtype)


def ulps(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest error in units of the last place of the right result; infinite for NaN or infinity amiss."""
    with np.errstate(all="ignore"):
        right = expected.astype(got.dtype)
        plain = np.isfinite(right) & np.isfinite(got)
        # What is beyond the greatest number may be this or infinity.
        most = np.finfo(got.dtype).max
        edge = (np.abs(expected.astype(np.longdouble)) > most * (1 - 1e-7)) & ~np.isnan(expected)
        same = np.where(np.isnan(right), np.isnan(got), got == right)
        if not np.all(same | plain | (edge & (np.abs(got) >= most * (1 - 1e-6)))):
            return float("inf")
        if not plain.any():
            return 0.0
        unit = np.spacing(np.abs(right[plain])).astype(np.longdouble)
        error = np.abs(got[plain].astype(np.longdouble) - expected[plain].astype(np.longdouble)) / unit
        return float(error.max())


@pytest.mark.parametrize("name", FLOAT)
def test_functions_of_one_number(functions: CudaModule, name: str) -> None:
    most, reference, which = FLOAT[name]
    x = numbers(which)
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.float64))
    assert ulps(called(functions, name, x), expected) <= most


@pytest.mark.parametrize("name", FLOAT2)
def test_functions_of_two_numbers(functions: CudaModule, name: str) -> None:
    most, reference = FLOAT2[name]
    x, y = numbers(ALL), np.random.default_rng(1).permutation(numbers(ALL))
    if name == "powf":
        x = np.concatenate([x, np.random.default_rng(2).uniform(0, 3, 4000).astype(np.float32)])
        y = np.concatenate([y, np.random.default_rng(3).uniform(-60, 60, 4000).astype(np.float32)])
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.float64), y.astype(np.float64))
    assert ulps(called(functions, name, x, y), expected) <= most


@pytest.mark.parametrize("name", DOUBLE)
def test_functions_in_double_precision(functions: CudaModule, name: str) -> None:
    most, reference, which = DOUBLE[name]
    x = numbers(which, np.float64)
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.longdouble))
    assert ulps(called(functions, name, x), expected) <= most


def test_fast_functions_are_as_inexact_as_stated(functions: CudaModule) -> None:
    random = np.random.default_rng(0)
    x = random.uniform(-80, 80, 4000).astype(np.float32)
    wide = x.astype(np.float64)
    exp = np.abs(called(functions, "__expf", x) - np.exp(wide)) / np.spacing(np.exp(wide).astype(np.float32))
    assert np.all(exp <= 2 + np.floor(np.abs(1.173 * wide)))
    assert exp.max() > 2  # or it would be better than a GPU's
    x = random.uniform(-37, 37, 4000).astype(np.float32)
    ten = np.power(10.0, x.astype(np.float64))
    error = np.abs(called(functions, "__exp10f", x) - ten) / np.spacing(ten.astype(np.float32))
    assert np.all(error <= 2 + np.floor(np.abs(2.97 * x)))
    angle = random.uniform(-np.pi, np.pi, 4000).astype(np.float32)
    assert np.abs(called(functions, "__sinf", angle) - np.sin(angle.astype(np.float64))).max() <= 2**-21.41
    assert np.abs(called(functions, "__cosf", angle) - np.cos(angle.astype(np.float64))).max() <= 2**-21.19
    near_one = random.uniform(0.5, 2, 4000).astype(np.float32)
    for name, right, absolute in (
        ("__logf", np.log, 2**-21.41),
        ("__log2f", np.log2, 2**-22),
        ("__log10f", np.log10, 2**-24),
    ):
        assert (
            np.abs(called(functions, name, near_one) - right(near_one.astype(np.float64))).max() <= absolute
        )
        far = np.exp(random.uniform(1, 80, 4000)).astype(np.float32)
        assert ulps(called(functions, name, far), right(far.astype(np.float64))) <= 3
    power = called(functions, "__powf", near_one, x)  # composed of __log2f and exp2f
    assert np.allclose(power, np.power(near_one.astype(np.float64), x.astype(np.float64)), rtol=1e-5)
    big = np.float32(2.0**127) * np.ones(2, np.float32)  # beyond 2^126 it is 0, or NaN of infinity
    assert called(functions, "__fdividef", np.array([1.0, np.inf], np.float32), big).tolist()[0] == 0.0
