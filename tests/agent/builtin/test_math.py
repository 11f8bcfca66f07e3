"""The elementary functions of the C++ header: error in ulp against float64, special values, vector code."""

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.jit import flags
from kernelwright.kernelbench.jit.standard import MATH_HEADER

pytestmark = pytest.mark.builds

HEADER = "#include <kernelwright/math.h>\nusing namespace kw;\n"
SPECIALS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3.4e38, -3.4e38, 1.0, -1.0, 88.8, -104.0]


def loop(name: str) -> str:
    return (
        f'extern "C" void {name}_loop(const float* x, float* y, int64_t n) {{\n'
        f"    #pragma omp simd\n    for (int64_t i = 0; i < n; ++i) y[i] = {name}(x[i]);\n}}\n"
    )


Exact = Callable[[np.ndarray], np.ndarray]
erf: Exact = np.vectorize(math.erf, otypes=[float])

# The range sampled besides all magnitudes, the exact function and the largest error in ulp.
FUNCTIONS: dict[str, tuple[float, Exact, float]] = {
    "exp_f32": (110.0, np.exp, 1.1),
    "expm1_f32": (90.0, np.expm1, 1.6),
    "log_f32": (4.0, np.log, 1.0),
    "log1p_f32": (4.0, np.log1p, 1.6),
    "tanh_f32": (10.0, np.tanh, 2.5),
    "erf_f32": (4.0, erf, 1.5),
    "sigmoid_f32": (110.0, lambda x: 1 / (1 + np.exp(-x)), 2.5),
    "rsqrt_f32": (4.0, lambda x: 1 / np.sqrt(x), 1.5),
    "softplus_f32": (30.0, lambda x: np.where(x > 20, x, np.log1p(np.exp(x))), 3.0),
}
CALLS = {
    "softplus_f32": "static inline float softplus_one(float x) { return softplus_f32(x, 1.0f, 20.0f); }\n"
}


@pytest.fixture(scope="module")
def lib() -> jit.CppLibrary:
    text = HEADER + "".join(CALLS.values())
    names = [name if name not in CALLS else "softplus_one" for name in FUNCTIONS]
    text += "".join(loop(name) for name in [*names, "exp_nonpositive_f32", "log1p_unit_f32", "gelu_f32"])
    text += (
        'extern "C" void pow_loop(const float* x, const float* e, float* y, int64_t n) {\n'
        "    #pragma omp simd\n    for (int64_t i = 0; i < n; ++i) y[i] = pow_f32(x[i], e[i]);\n}\n"
    )
    return jit.compile_cpp(text)


def run(lib: jit.CppLibrary, name: str, x: np.ndarray) -> np.ndarray:
    y = torch.empty(x.size)
    getattr(lib, f"{name}_loop")(torch.from_numpy(x), y, x.size)
    return y.numpy()


def samples(width: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    every = np.arange(0, 2**32, 4099, dtype=np.uint32).view(np.float32)
    near = np.concatenate([rng.uniform(-width, width, 300_000), 10 ** rng.uniform(-39, 38, 100_000)])
    return np.concatenate([every, near.astype(np.float32), np.array(SPECIALS, np.float32)])


def ulp_error(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    rounded = exact.astype(np.float32)
    same = (np.isnan(y) & np.isnan(rounded)) | (y == rounded)
    finite = np.isfinite(rounded) & np.isfinite(y)
    error = np.abs(y.astype(float) - exact) / np.spacing(np.abs(rounded)).astype(float)
    return np.where(finite, error, np.where(same, 0.0, np.inf))


@pytest.mark.parametrize("name", FUNCTIONS)
@np.errstate(all="ignore")
def test_error_in_ulp_over_all_floats(lib: jit.CppLibrary, name: str) -> None:
    width, exact, most = FUNCTIONS[name]
    x = samples(width)
    error = ulp_error(run(lib, name if name not in CALLS else "softplus_one", x), exact(x.astype(float)))
    assert error.max() <= most, x[error.argmax()]


@np.errstate(all="ignore")
def test_log1p_of_numbers_up_to_one(lib: jit.CppLibrary) -> None:
    x = np.abs(samples(1.0))
    x = np.append(x[~(x > 1)], np.float32(1))
    assert ulp_error(run(lib, "log1p_unit_f32", x), np.log1p(x.astype(float))).max() <= 1.7


@np.errstate(all="ignore")
def test_exp_of_nonpositive_numbers(lib: jit.CppLibrary) -> None:
    x = -np.abs(samples(110.0))
    error = ulp_error(run(lib, "exp_nonpositive_f32", x), np.exp(x.astype(float)))
    assert error.max() <= 1.1


@np.errstate(all="ignore")
def test_gelu_is_as_near_to_the_exact_one_as_its_comment_says(lib: jit.CppLibrary) -> None:
    x = samples(12.0)
    x = x[np.isfinite(x)]
    exact = 0.5 * x.astype(float) * np.array([math.erfc(-v / math.sqrt(2)) for v in x.astype(float)])
    y = run(lib, "gelu_f32", x)
    assert ulp_error(y, exact)[x > 0].max() <= 3.5
    assert np.abs(y - exact)[x < 0].max() <= 1e-7
    assert run(lib, "gelu_f32", np.array([math.inf, -1e30], np.float32)).tolist() == [math.inf, 0.0]


@np.errstate(all="ignore")
def test_power(lib: jit.CppLibrary) -> None:
    rng = np.random.default_rng(0)
    grid = np.array([*SPECIALS, 2, -2, 3, -3, 0.5, -0.5, 2.5, 16777217, 0.99999994], np.float32)
    a, b = (v.ravel() for v in np.meshgrid(grid, grid))
    x = np.concatenate([a, rng.uniform(0, 3, 200_000), 10 ** rng.uniform(-38, 38, 200_000)]).astype(
        np.float32
    )
    e = np.concatenate([b, rng.uniform(-5, 5, 200_000), rng.uniform(-3, 3, 200_000)]).astype(np.float32)
    y = torch.empty(x.size)
    lib.pow_loop(torch.from_numpy(x), torch.from_numpy(e), y, x.size)
    assert ulp_error(y.numpy(), np.power(x.astype(float), e.astype(float))).max() <= 1.0


def test_loops_over_every_function_are_vectorised(tmp_path: Path) -> None:
    names = [*(n for n in FUNCTIONS if n not in CALLS), "gelu_f32"]
    (tmp_path / "loops.cpp").write_text(HEADER + "".join(loop(name) for name in names))
    words = [
        "g++",
        *flags.DEFAULT,
        "-isystem",
        str(MATH_HEADER.parent.parent),
        "-fopt-info-vec",
        "-c",
        "loops.cpp",
        "-o",
        "loops.o",
    ]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    lines = {line.split(":")[1] for line in said.splitlines() if "loop vectorized" in line}
    text = (tmp_path / "loops.cpp").read_text().splitlines()
    loops = {
        str(i)
        for i, line in enumerate(text, 1)
        if line.lstrip().startswith("for (int64_t i = 0; i < n; ++i) y")
    }
    assert loops <= lines
