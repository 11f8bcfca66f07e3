"""half and bfloat16 in emulation: each result is the right one, rounded once to the nearest, ties to even."""

import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from kernelwright.kernelbench.jit.cuda import CudaModule, compile_cuda

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there"),
]

OF_BOTH = r"""
extern "C" __global__ void half_widen(const half* x, float* y, int n) { EACH y[i] = __half2float(x[i]); }
extern "C" __global__ void half_narrow(const float* x, half* y, int n) { EACH y[i] = __float2half_rn(x[i]); }
extern "C" __global__ void half_narrow_double(const double* x, half* y, int n) { EACH y[i] = __double2half(x[i]); }
extern "C" __global__ void half_compute(const half* a, const half* b, const half* c, half* y, int n) {
    EACH {
        y[i] = __hadd(a[i], b[i]);
        y[n + i] = a[i] - b[i];
        y[2 * n + i] = __hmul(a[i], b[i]);
        y[3 * n + i] = a[i] / b[i];
        y[4 * n + i] = __hfma(a[i], b[i], c[i]);
        y[5 * n + i] = hsqrt(__habs(a[i]));
    }
}
extern "C" __global__ void half_pairs(const half* a, const half* b, half* y, float* f, int n) {
    EACH {
        const half2 p = reinterpret_cast<const half2*>(a)[i], q = reinterpret_cast<const half2*>(b)[i];
        half2* out = reinterpret_cast<half2*>(y);
        half2 sum = __hadd2(p, q);
        sum += __hmul2(p, q);
        out[i] = __hfma2(p, q, sum);
        out[n + i] = __hmax2(__habs2(p), __hneg2(q));
        out[2 * n + i] = h2exp(p);
        const float2 wide = __half22float2(p);
        f[i] = wide.x - wide.y;
        out[3 * n + i] = __floats2half2_rn(wide.y, wide.x);
    }
}
"""
SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define EACH for (int i = threadIdx.x; i < n; i += blockDim.x)
"""
OF_HALF = r"""
extern "C" __global__ void half_rounded(const float* x, half* y, int n) {
    EACH {
        y[i] = __float2half_rz(x[i]);
        y[n + i] = __float2half_rd(x[i]);
        y[2 * n + i] = __float2half_ru(x[i]);
    }
}
extern "C" __global__ void half_whole(const half* x, int* y, int n) {
    EACH {
        y[i] = __half2int_rn(x[i]);
        y[n + i] = __half2int_rz(x[i]);
        y[2 * n + i] = __half2ushort_rn(x[i]);
        y[3 * n + i] = __half2short_rz(x[i]);
    }
}
"""
KINDS = {"half": (torch.float16, 11, -14), "bfloat16": (torch.bfloat16, 8, -126)}  # digits, least exponent


@pytest.fixture(scope="module")
def module() -> CudaModule:
    of_bfloat = OF_BOTH.replace("half2 ", "__nv_bfloat162 ").replace("half2*", "__nv_bfloat162*")
    of_bfloat = re.sub(r"\bhalf\*", "__nv_bfloat16*", of_bfloat)
    of_bfloat = re.sub(r"(\w*)half(\w*\()", r"\1bfloat16\2", of_bfloat).replace(
        "__half22float2", "__bfloat1622float2"
    )
    return compile_cuda(SOURCE + OF_BOTH + of_bfloat + OF_HALF)


def every(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(65536).to(torch.uint16).view(dtype)


def some(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Any of them but NaN."""
    torch.manual_seed(seed)
    found = torch.randint(0, 65536, (2 * count,)).to(torch.uint16).view(dtype)
    return found[~found.isnan()][:count].contiguous()


def rounded(x: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Of double precision, without a step between."""
    _, digits, least = next(kind for kind in KINDS.values() if kind[0] == dtype)
    with np.errstate(all="ignore"):
        unit = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, least) - digits + 1)
        nearest = np.where(np.isfinite(x) & (x != 0), np.rint(x / unit) * unit, x)
    return torch.from_numpy(nearest).to(dtype)  # which is exact now, or too large


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(
        torch.equal(
            got.float().nan_to_num(123.0, torch.inf, -torch.inf),
            expected.float().nan_to_num(123.0, torch.inf, -torch.inf),
        )
    )


@pytest.mark.parametrize("name", KINDS)
def test_all_of_them_widen_and_narrow_again(module: CudaModule, name: str) -> None:
    dtype, *_ = KINDS[name]
    x, wide, back = every(dtype), torch.empty(65536), torch.empty(65536, dtype=dtype)
    module.get_function(f"{name}_widen")((1,), (64,), (x, wide, 65536))
    assert same(wide, x)
    module.get_function(f"{name}_narrow")((1,), (64,), (wide, back, 65536))
    assert same(back, x)


@pytest.mark.parametrize("name", KINDS)
def test_numbers_between_are_rounded_to_the_nearest(module: CudaModule, name: str) -> None:
    dtype, *_ = KINDS[name]
    low = some(dtype, 20000, 1).double()
    near = (every(dtype).float().nextafter(torch.tensor(0.0)) + every(dtype).float()) / 2
    halves = torch.cat([low + low.nextafter(torch.tensor(torch.inf).double()), near.double()])
    ties = (every(dtype)[:-1].double() + every(dtype)[1:].double()) / 2  # of neighbours, where they are
    x = torch.cat(
        [
            halves,
            ties,
            torch.randn(20000).double() * 1e-5,
            torch.tensor([65519.99, 65520.0, 3.3961e38, 1e300]),
        ]
    )
    y = torch.empty(len(x), dtype=dtype)
    module.get_function(f"{name}_narrow_double")((1,), (64,), (x, y, len(x)))
    assert same(y, rounded(x.numpy(), dtype))
    module.get_function(f"{name}_narrow")((1,), (64,), (x.float(), y, len(x)))
    assert same(y, rounded(x.float().double().numpy(), dtype))


@pytest.mark.parametrize("name", KINDS)
def test_arithmetic_is_rounded_once(module: CudaModule, name: str) -> None:
    dtype, *_ = KINDS[name]
    n = 4000
    a, b, c = (some(dtype, n, seed) for seed in (1, 2, 3))
    b[: n // 2] = (a[: n // 2] * 1.01).to(dtype)  # of like sizes, so that sums and fused sums are not trivial
    c[: n // 2] = -(a[: n // 2] * b[: n // 2])
    b[c.isnan()], c[c.isnan()] = 1.0, 1.0
    y = torch.empty(6, n, dtype=dtype)
    module.get_function(f"{name}_compute")((1,), (64,), (a, b, c, y, n))
    p, q, r = (each.double().numpy() for each in (a, b, c))
    with np.errstate(all="ignore"):
        for got, expected in zip(y, (p + q, p - q, p * q, p / q, None, np.sqrt(np.abs(p))), strict=True):
            if expected is not None:  # a double has digits enough for these to be rounded once all the same
                assert same(got, rounded(expected, dtype))
    plain = np.isfinite(p) & np.isfinite(q) & np.isfinite(r)
    exact = [
        Fraction(u) * Fraction(v) + Fraction(w) for u, v, w in zip(p[plain], q[plain], r[plain], strict=True)
    ]
    assert same(y[4][torch.from_numpy(plain)], rounded(np.array([to_odd(each) for each in exact]), dtype))


def to_odd(exact: Fraction) -> float:
    """A double from which a number of fewer digits can be rounded as if from what is exact."""
    nearest = float(exact)
    if Fraction(nearest) == exact or np.float64(nearest).view(np.int64) & 1:
        return nearest
    return float(np.nextafter(nearest, np.inf if exact > Fraction(nearest) else -np.inf))


@pytest.mark.parametrize("name", KINDS)
def test_pairs_do_what_two_numbers_do(module: CudaModule, name: str) -> None:
    dtype, *_ = KINDS[name]
    torch.manual_seed(0)
    a, b = torch.randn(2000).to(dtype), torch.randn(2000).to(dtype)
    y, f = torch.empty(4, 2000, dtype=dtype), torch.empty(1000)
    module.get_function(f"{name}_pairs")((1,), (64,), (a, b, y, f, 1000))
    added = a + b + a * b
    torch.testing.assert_close(
        y[0].float(), (a.double() * b.double() + added.double()).float(), rtol=0, atol=0.1
    )
    assert same(y[1], torch.maximum(a.abs(), -b))
    torch.testing.assert_close(y[2], a.float().exp().to(dtype))
    assert same(f, (a[0::2].float() - a[1::2].float()))
    assert same(y[3], a.reshape(-1, 2).flip(1).reshape(-1))


def test_halfs_are_rounded_the_way_that_is_asked_for(module: CudaModule) -> None:
    x = torch.cat([torch.randn(1000), torch.tensor([65519.0, 65536.0, 1e-9, -1e-9, torch.inf])])
    y = torch.empty(3, len(x), dtype=torch.float16)
    module.half_rounded((1,), (64,), (x, y, len(x)))
    zero, down, up = y.float()
    assert bool(((zero.abs() <= x.abs()) & (down <= x) & (up >= x)).all())
    assert bool((torch.where(x > 0, down, up) == zero).all())
    gap = (up - down)[:1000]
    assert bool((gap <= x[:1000].abs() * 2**-10 + 2**-24).all())  # neighbours, or the number itself


def test_halfs_to_whole_numbers(module: CudaModule) -> None:
    x = torch.tensor([0.5, 1.5, -2.5, 1e4, -1.0, torch.inf, -torch.inf, torch.nan]).half()
    y = torch.empty(4, 8, dtype=torch.int32)
    module.half_whole((1,), (8,), (x, y, 8))
    least, most = -(2**31), 2**31 - 1
    assert y.tolist() == [
        [0, 2, -2, 10000, -1, most, least, 0],
        [0, 1, -2, 10000, -1, most, least, 0],
        [0, 2, 0, 10000, 0, 65535, 0, 0],
        [0, 1, -2, 10000, -1, 32767, -32768, 0],
    ]
