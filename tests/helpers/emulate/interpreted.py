"""Triton kernels for `test_interpreted`, and what calls them in a process where they are interpreted."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as of_cuda

from kernelwright.kernelbench.emulate import history
from kernelwright.kernelbench.emulate.findings import Unsupported
from kernelwright.kernelbench.evaluator.processes.interpreted import interpret

interpret("sm_90")


@triton.jit
def product(a, b, c, N: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision=PRECISION))


@triton.jit
def arithmetic(a, b, c, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(a + at), tl.load(b + at)
    result = tl.where(x > y, x * y - x, -y / (tl.abs(x) + 1.5)) + tl.full((N,), 0.1, c.dtype.element_ty)
    tl.store(c + at, result.to(c.dtype.element_ty))


@triton.jit
def converted(a, c, N: tl.constexpr, ROUNDING: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(c + at, tl.load(a + at).to(c.dtype.element_ty, fp_downcast_rounding=ROUNDING))


@triton.jit
def scaled(a, c, factor, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(c + at, tl.load(a + at) * factor)
    tl.store(c + N + at, tl.load(a + at) * factor.to(tl.bfloat16))


@triton.jit
def added(a, at, total, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.atomic_add(total + tl.load(at + o), tl.load(a + o), mask=o < N - 1)


@triton.jit
def functions(a, c, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(a + at)
    tl.store(c + at, libdevice.tanh(x))
    tl.store(c + N + at, of_cuda.erf(x))
    tl.store(c + 2 * N + at, libdevice.pow(libdevice.exp(x), 2.0))
    tl.store(c + 3 * N + at, libdevice.rsqrt(libdevice.fast_expf(x)))
    tl.store(c + 4 * N + at, libdevice.isnan(x).to(tl.float32))


@triton.jit
def assembly(a, N: tl.constexpr):
    x = tl.load(a + tl.arange(0, N))
    y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(a + tl.arange(0, N), y)


@triton.jit
def asserting(a, N: tl.constexpr):
    tl.static_assert(N > 16, "too narrow")


@triton.jit
def too_wide(a, N: tl.constexpr):
    tl.store(a + tl.arange(0, N), tl.arange(0, N) + tl.arange(0, 2 * N))


def products(dtype: torch.dtype, precision: str) -> list[torch.Tensor]:
    a, b = torch.randn(2, 32, 32).to(dtype)
    c = torch.empty(32, 32)
    product[(1,)](a, b, c, 32, precision)
    return [a, b, c]


def of_pairs() -> list[torch.Tensor]:
    a, b = torch.randn(2, 256).bfloat16()
    c = torch.empty_like(a)
    arithmetic[(1,)](a, b, c, 256)
    return [a, b, c]


def by_a_float(factor: float) -> list[torch.Tensor]:
    a, c = torch.randn(64).bfloat16(), torch.empty(2, 64)
    scaled[(1,)](a, c, factor, 64)
    return [a, c]


def conversions(source: torch.dtype, target: torch.dtype, rounding: str | None) -> list[torch.Tensor]:
    a = (torch.randn(4096) * torch.randn(4096).exp2()).to(source)
    a[:4] = torch.tensor([0.0, -0.0, 1.99999, float("inf")]).to(source)
    c = torch.empty(4096, dtype=target)
    converted[(1,)](a, c, 4096, rounding)
    return [a, c]


def sums() -> list[torch.Tensor]:
    a = torch.randint(-8, 8, (64,)).bfloat16()
    at, total = torch.randint(4, (64,)), torch.zeros(4).bfloat16()
    added[(1,)](a, at, total, 64)
    return [a, at, total]


def of_libdevice() -> list[torch.Tensor]:
    a, c = torch.randn(64), torch.empty(5, 64)
    functions[(1,)](a, c, 64)
    return [a, c]


def raised(which: str) -> tuple[str, str]:
    a = torch.zeros(16)
    calls = {
        "assembly": lambda: assembly[(1,)](a, 16),
        "asserting": lambda: asserting[(1,)](a, 16),
        "too_wide": lambda: too_wide[(1,)](a, 16),
    }
    try:
        calls[which]()
    except Unsupported as error:
        return "unsupported", str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return "other", str(error)
    return "", ""


def launches() -> tuple[list[str], list[tuple[str, str]]]:
    history.launched.clear()
    history.troubles.clear()
    a = torch.zeros(16)
    converted[(2,)](a, torch.empty(16), 16, None)
    product[(0,)](a, a, a, 16, "ieee")  # launches nothing
    raised("asserting")
    return list(history.launched), list(history.troubles)
