"""Whole numbers in emulation: conversions that saturate, and intrinsics against Python's own arithmetic."""

import random

import pytest
import torch

from kernelwright.kernelbench.jit.cuda import CudaModule, compile_cuda

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there"),
]

INTRINSICS = (
    "__popc(a)", "__clz(a)", "__ffs(a)", "__brev(a)", "__byte_perm(a, b, c)", "__funnelshift_l(a, b, c)",
    "__funnelshift_r(a, b, c)", "__funnelshift_lc(a, b, c)", "__funnelshift_rc(a, b, c)", "__mulhi((int)a, (int)b)",
    "__umulhi(a, b)", "__mul24((int)a, (int)b)", "__umul24(a, b)", "__dp4a((int)a, (int)b, (int)c)",
    "__dp4a(a, b, c)", "__sad((int)a, (int)b, c)", "__usad(a, b, c)", "__hadd((int)a, (int)b)", "__rhadd((int)a, (int)b)",
    "__uhadd(a, b)", "__vabsdiffu4(a, b)", "__popcll((unsigned long long)a << 32 | b)",
    "__clzll((long long)((unsigned long long)a << 32 | b))", "__ffsll((long long)((unsigned long long)a << 32))",
    "(unsigned)__umul64hi((unsigned long long)a << 32 | b, (unsigned long long)b << 32 | c)",
    "(unsigned)__mul64hi((long long)((unsigned long long)a << 32 | b), (long long)((unsigned long long)b << 32 | c))",
    "(unsigned)(__brevll((unsigned long long)a << 32 | b) >> 32)",
    "(unsigned)abs((int)a)", "min(a, (unsigned)b)", "(unsigned)max((int)a, (int)b)",
)  # fmt: skip
CONVERSIONS = {
    "__float2int_rn": (-(2**31), 2**31 - 1, round), "__float2int_rz": (-(2**31), 2**31 - 1, int),
    "__float2uint_rz": (0, 2**32 - 1, int), "__float2ll_rz": (-(2**63), 2**63 - 1, int),
    "__float2ull_rn": (0, 2**64 - 1, round),
}  # fmt: skip


@pytest.fixture(scope="module")
def module() -> CudaModule:
    intrinsics = "\n".join(f"    y[{number}] = {call};" for number, call in enumerate(INTRINSICS))
    conversions = "\n".join(
        f"    y[{number} * n + i] = (long long){name}(x[i]);" for number, name in enumerate(CONVERSIONS)
    )
    return compile_cuda(
        f'extern "C" __global__ void intrinsics(unsigned a, unsigned b, unsigned c, unsigned* y) {{\n{intrinsics}\n}}\n'
        f'extern "C" __global__ void whole(const float* x, long long* y, int n) {{\n const int i = threadIdx.x;\n{conversions}\n}}\n'
    )


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> bits - 1 else x


def told(a: int, b: int, c: int) -> list[int]:
    """What the intrinsics come to, by Python."""
    s, t, both = signed(a), signed(b), b << 32 | a

    def of_bytes(x: int) -> list[int]:
        return [x >> 8 * byte & 255 for byte in range(4)]

    def turned(x: int, bits: int) -> int:
        return int(f"{x:0{bits}b}"[::-1], 2)

    def low24(x: int) -> int:
        return signed(x, 24)

    def chosen(nibble: int) -> int:
        byte = both >> 8 * (nibble & 7) & 255
        return (255 if byte & 128 else 0) if nibble & 8 else byte

    high, low = a << 32 | b, b << 32 | c
    return [value & 0xFFFFFFFF for value in (
        a.bit_count(), 32 - a.bit_length(), (a & -a).bit_length(), turned(a, 32),
        sum(chosen(c >> 4 * byte & 15) << 8 * byte for byte in range(4)),
        both << (c & 31) >> 32, both >> (c & 31), both << min(c, 32) >> 32, both >> min(c, 32),
        s * t >> 32, a * b >> 32, low24(a) * low24(b), (a & 0xFFFFFF) * (b & 0xFFFFFF),
        c + sum(signed(x, 8) * signed(y, 8) for x, y in zip(of_bytes(a), of_bytes(b), strict=True)),
        c + sum(x * y for x, y in zip(of_bytes(a), of_bytes(b), strict=True)),
        c + abs(s - t), c + abs(a - b), s + t >> 1, s + t + 1 >> 1, a + b >> 1,
        sum(abs(x - y) << 8 * byte for byte, (x, y) in enumerate(zip(of_bytes(a), of_bytes(b), strict=True))),
        high.bit_count(), 64 - high.bit_length(), (a << 32 & -(a << 32)).bit_length(), high * low >> 64,
        signed(high, 64) * signed(low, 64) >> 64, turned(high, 64) >> 32, abs(s), min(a, b), max(s, t),
    )]  # fmt: skip


def test_intrinsics(module: CudaModule) -> None:
    chance = random.Random(0)
    cases = [(0, 0, 0), (0xFFFFFFFF, 0xFFFFFFFF, 33), (1, 0x80000000, 32), (0x80000001, 7, 31)]
    cases += [tuple(chance.getrandbits(32) for _ in range(3)) for _ in range(60)]  # type: ignore[misc]
    for case in cases:
        y = torch.empty(len(INTRINSICS), dtype=torch.uint32)
        module.intrinsics((1,), (1,), (*case, y))
        found, expected = y.tolist(), told(*case)
        assert dict(zip(INTRINSICS, found, strict=True)) == dict(zip(INTRINSICS, expected, strict=True)), case


def test_conversions_saturate(module: CudaModule) -> None:
    x = torch.tensor(
        [
            0.0,
            -0.5,
            0.5,
            1.5,
            2.5,
            -2.5,
            1e9,
            3e9,
            -3e9,
            5e9,
            1e19,
            2e19,
            -1e19,
            1e30,
            torch.inf,
            -torch.inf,
            torch.nan,
        ]
    )
    y = torch.empty(len(CONVERSIONS), len(x), dtype=torch.int64)
    module.whole((1,), (len(x),), (x, y, len(x)))
    for (name, (least, most, rounding)), found in zip(CONVERSIONS.items(), y.tolist(), strict=True):
        for value, got in zip(x.tolist(), found, strict=True):
            finite = value == value and abs(value) != float("inf")
            whole = rounding(value) if finite else 0 if value != value else most if value > 0 else least
            assert got % 2**64 == min(most, max(least, whole)) % 2**64, (name, value)
