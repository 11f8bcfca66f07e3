"""One fused kernel in C++ with OpenMP, built for any batch_size and tokens.

- `silu_mul`: silu, mul

Left to torch: mm.
Schedule: vector=512, unroll=off; each kernel names its own.
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#if defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=512")
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float float_of(int32_t i) {
    float x;
    std::memcpy(&x, &i, sizeof x);
    return x;
}

static inline int32_t bits_of(float x) {
    int32_t i;
    std::memcpy(&i, &x, sizeof i);
    return i;
}

// e^x for x <= 0 within 1.1 ulp. Without large results one factor serves: 2^(n + 24), and 2^-24 after it.
static inline float exp_nonpositive_f32(float x) {
    const float clamped = x < -104.0f ? -104.0f : x;
    const float shifted = std::fma(clamped, 1.44269504f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    float r = std::fma(n, -0.693359375f, clamped);
    r = std::fma(n, 2.12194440e-4f, r);
    const float r2 = r * r;
    const float high = std::fma(std::fma(1.9875691500e-4f, r, 1.3981999507e-3f), r2,
                                std::fma(8.3334519073e-3f, r, 4.1665795894e-2f));
    const float low = std::fma(1.6666665459e-1f, r, 5.0000001201e-1f);
    const float p = std::fma(std::fma(high, r2, low), r2, r) + 1.0f;
    const float scale = float_of((bits_of(shifted) - (0x4b400000 - 127 - 24)) << 23);
    return p * (x < -104.0f ? 0.0f : scale) * 5.9604644775390625e-08f;
}

// Logistic function within 2.5 ulp, denormal results included.
static inline float sigmoid_f32(float x) {
    const float e = exp_nonpositive_f32(-std::fabs(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// batch_size * tokens * 704 elements in blocks; 1 pass over each.
// Schedule: block=256, streaming=off, prefetch=off.
extern "C" void silu_mul(
    const float* mm,
    const float* mm_1,
    float* mul_out,
    int64_t batch_size,
    int64_t tokens) {
    const int64_t NUMEL = batch_size * tokens * 704;
    constexpr int64_t BLOCK = 256;
    const int64_t ROWS = (NUMEL + BLOCK - 1) / BLOCK;
    #pragma omp parallel for schedule(static) if (batch_size * tokens * 704 >= 8192)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t first = row * BLOCK;
        const int64_t n = std::min(BLOCK, NUMEL - first);
        const float* mm_row = mm + first;
        const float* mm_1_row = mm_1 + first;
        float* mul_out_row = mul_out + first;
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            const float silu = mm_row[i] * sigmoid_f32(mm_row[i]);
            const float mul = silu * mm_1_row[i];
            mul_out_row[i] = mul;
        }
    }
}
"""

lib = jit.compile_cpp(SOURCE)

X_SHAPE = ("batch_size", "tokens", 256)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int | str, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one dtype, and for any size that only has a name."""
    wanted = tuple(size if isinstance(n, str) else n for n, size in zip(shape, tensor.shape, strict=False))
    if tensor.dim() != len(shape) or tensor.shape != wanted or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    def __init__(self, features: int, hidden_features: int):
        if (features, hidden_features) != (256, 704):
            raise ValueError("these kernels are built for ModelNew(256, 704)")
        super().__init__()
        self.gate_proj = nn.Linear(features, hidden_features, bias=False)
        self.up_proj = nn.Linear(features, hidden_features, bias=False)
        self.down_proj = nn.Linear(hidden_features, features, bias=False)

    @torch.no_grad()
    def forward(self, x):
        x = checked("x", x, X_SHAPE, torch.float32)
        batch_size, tokens = x.shape[0], x.shape[1]
        view = x.reshape(batch_size * tokens, 256)
        permute = self.gate_proj.weight.permute(1, 0)
        mm = torch.mm(view, permute)
        permute_1 = self.up_proj.weight.permute(1, 0)
        mm_1 = torch.mm(view, permute_1)
        mul = torch.empty((batch_size, tokens, 704), dtype=torch.float32, device="cpu")
        lib.silu_mul(mm, mm_1, mul, batch_size, tokens)
        view_4 = mul.view((batch_size * tokens, 704))
        permute_2 = self.down_proj.weight.permute(1, 0)
        mm_2 = torch.mm(view_4, permute_2)
        view_5 = mm_2.view((batch_size, tokens, 256))
        return view_5, mm, mm_1
