"""One fused kernel in C++ with OpenMP, built for any batch_size and tokens.

- `gelu_kernel`: gelu

Left to torch: linear.
Schedule: vector=512, unroll=off; each kernel names its own.
"""

import torch
import torch.nn.functional as F
from torch import nn

from kernelwright import jit

SOURCE = r"""
#if defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=512")
#endif
#include <cmath>
#include <cstdint>
#include <cstring>

static inline int32_t bits_of(float x) {
    int32_t i;
    std::memcpy(&i, &x, sizeof i);
    return i;
}

static inline float float_of(int32_t i) {
    float x;
    std::memcpy(&x, &i, sizeof x);
    return x;
}

// 2^n for -126 <= n <= 127.
static inline float power_of_two(int32_t n) { return float_of((n + 127) << 23); }

// e^x - 1 within 1.5 ulp, also near zero.
static inline float expm1_f32(float x) {
    const float clamped = std::fabs(x) > 89.0f ? std::copysign(89.0f, x) : x;
    const float shifted = std::fma(clamped, 1.44269504f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    float r = std::fma(n, -0.693359375f, clamped);
    r = std::fma(n, 2.12194440e-4f, r);
    const float r2 = r * r;
    const float high = std::fma(std::fma(1.9875691500e-4f, r, 1.3981999507e-3f), r2,
                                std::fma(8.3334519073e-3f, r, 4.1665795894e-2f));
    const float low = std::fma(1.6666665459e-1f, r, 5.0000001201e-1f);
    const float p = std::fma(std::fma(high, r2, low), r2, r);
    const int32_t whole = bits_of(shifted) - 0x4b400000;
    const float half_scale = power_of_two(whole < -125 ? -126 : whole - 1);
    const float grown = 2.0f * std::fma(half_scale, p, half_scale - 0.5f);
    return n == 0.0f ? p : grown;
}

// Hyperbolic tangent within 2.5 ulp.
static inline float tanh_f32(float x) {
    const float magnitude = std::fabs(x);
    const float e = expm1_f32(magnitude > 10.0f ? 20.0f : 2.0f * magnitude);
    const float y = magnitude < 1.0e-4f ? magnitude : e / (e + 2.0f);
    return x != x ? x : std::copysign(y, x);
}

static inline float gelu_tanh_f32(float x) {
    return 0.5f * x * (1.0f + tanh_f32(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

// batch_size * tokens * 1024 elements in blocks; 1 pass over each.
// Schedule: in_place=on, block=256, prefetch=off.
extern "C" void gelu_kernel(const float* linear, float* gelu_out, int64_t batch_size, int64_t tokens) {
    const int64_t NUMEL = batch_size * tokens * 1024;
    constexpr int64_t BLOCK = 256;
    const int64_t ROWS = NUMEL / BLOCK;
    #pragma omp parallel for schedule(static) if (batch_size * tokens * 1024 >= 4681)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t first = row * BLOCK;
        const float* linear_row = linear + first;
        float* gelu_out_row = gelu_out + first;
        #pragma omp simd
        for (int64_t i = 0; i < BLOCK; ++i) {
            const float gelu = gelu_tanh_f32(linear_row[i]);
            gelu_out_row[i] = gelu;
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
        if (features, hidden_features) != (256, 1024):
            raise ValueError("these kernels are built for ModelNew(256, 1024)")
        super().__init__()
        self.linear = nn.Linear(features, hidden_features)

    @torch.no_grad()
    def forward(self, x):
        x = checked("x", x, X_SHAPE, torch.float32)
        batch_size, tokens = x.shape[0], x.shape[1]
        linear = F.linear(x, self.linear.weight, self.linear.bias)
        lib.gelu_kernel(linear, linear, batch_size, tokens)
        return linear
