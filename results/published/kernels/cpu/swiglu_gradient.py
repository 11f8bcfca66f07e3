"""2 fused kernels in C++ with OpenMP, built for one set of shapes.

- `silu_mul_silu_backward`: silu, mul, silu_backward
- `add_kernel`: add

Left to torch: mm.
Schedule: vector=512, unroll=off; each kernel names its own.
"""

import torch
from torch import nn

from kernelbench import jit

SOURCE = r"""
#if defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=512")
#endif
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

// 720896 elements in blocks; 1 pass over each.
// Schedule: block=256, streaming=off, prefetch=off.
extern "C" void silu_mul_silu_backward(
    const float* saved_0,
    const float* saved_1,
    const float* mm_1,
    float* mul_out,
    float* mul_1_out,
    float* silu_backward_out) {
    constexpr int64_t NUMEL = 720896, BLOCK = 256;
    constexpr int64_t ROWS = NUMEL / BLOCK;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t first = row * BLOCK;
        const float* saved_0_row = saved_0 + first;
        const float* saved_1_row = saved_1 + first;
        const float* mm_1_row = mm_1 + first;
        float* mul_out_row = mul_out + first;
        float* mul_1_out_row = mul_1_out + first;
        float* silu_backward_out_row = silu_backward_out + first;
        #pragma omp simd
        for (int64_t i = 0; i < BLOCK; ++i) {
            const float silu = saved_0_row[i] * sigmoid_f32(saved_0_row[i]);
            const float mul = silu * saved_1_row[i];
            const float mul_1 = mm_1_row[i] * silu;
            const float mul_2 = mm_1_row[i] * saved_1_row[i];
            const float silu_backward = mul_2 * (sigmoid_f32(saved_0_row[i]) * (1.0f + saved_0_row[i] * (1.0f - sigmoid_f32(saved_0_row[i]))));
            mul_out_row[i] = mul;
            mul_1_out_row[i] = mul_1;
            silu_backward_out_row[i] = silu_backward;
        }
    }
}

// 262144 elements in blocks; 1 pass over each.
// Schedule: block=256, streaming=off, prefetch=off.
extern "C" void add_kernel(const float* mm_3, const float* mm_5, float* add_out) {
    constexpr int64_t NUMEL = 262144, BLOCK = 256;
    constexpr int64_t ROWS = NUMEL / BLOCK;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t first = row * BLOCK;
        const float* mm_3_row = mm_3 + first;
        const float* mm_5_row = mm_5 + first;
        float* add_out_row = add_out + first;
        #pragma omp simd
        for (int64_t i = 0; i < BLOCK; ++i) {
            const float add = mm_3_row[i] + mm_5_row[i];
            add_out_row[i] = add;
        }
    }
}
"""

lib = jit.compile_cpp(SOURCE)

GRAD_OUTPUT_SHAPE = (8, 128, 256)
X_SHAPE = (8, 128, 256)
GATE_PROJ_WEIGHT_SHAPE = (704, 256)
UP_PROJ_WEIGHT_SHAPE = (704, 256)
DOWN_PROJ_WEIGHT_SHAPE = (256, 704)
SAVED_0_SHAPE = (1024, 704)
SAVED_1_SHAPE = (1024, 704)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one shape and dtype."""
    if tensor.shape != shape or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, grad_output, x, gate_proj_weight, up_proj_weight, down_proj_weight, saved_0, saved_1):
        grad_output = checked("grad_output", grad_output, GRAD_OUTPUT_SHAPE, torch.float32)
        x = checked("x", x, X_SHAPE, torch.float32)
        gate_proj_weight = checked("gate_proj_weight", gate_proj_weight, GATE_PROJ_WEIGHT_SHAPE, torch.float32)
        up_proj_weight = checked("up_proj_weight", up_proj_weight, UP_PROJ_WEIGHT_SHAPE, torch.float32)
        down_proj_weight = checked("down_proj_weight", down_proj_weight, DOWN_PROJ_WEIGHT_SHAPE, torch.float32)
        saved_0 = checked("saved_0", saved_0, SAVED_0_SHAPE, torch.float32)
        saved_1 = checked("saved_1", saved_1, SAVED_1_SHAPE, torch.float32)
        view_5 = grad_output.reshape(1024, 256)
        permute_2 = down_proj_weight.permute(1, 0)
        permute_5 = permute_2.permute(1, 0)
        mm_1 = torch.mm(view_5, permute_5)
        mul = torch.empty((8, 128, 704))
        mul_1 = torch.empty((8, 128, 704))
        silu_backward = torch.empty((8, 128, 704))
        lib.silu_mul_silu_backward(saved_0, saved_1, mm_1, mul, mul_1, silu_backward)
        permute_3 = view_5.permute(1, 0)
        view_4 = mul.view((1024, 704))
        mm = torch.mm(permute_3, view_4)
        view_7 = mul_1.view((1024, 704))
        permute_7 = view_7.permute(1, 0)
        view = x.reshape(1024, 256)
        mm_2 = torch.mm(permute_7, view)
        permute_1 = up_proj_weight.permute(1, 0)
        permute_9 = permute_1.permute(1, 0)
        mm_3 = torch.mm(view_7, permute_9)
        view_9 = silu_backward.view((1024, 704))
        permute_11 = view_9.permute(1, 0)
        mm_4 = torch.mm(permute_11, view)
        permute = gate_proj_weight.permute(1, 0)
        permute_13 = permute.permute(1, 0)
        mm_5 = torch.mm(view_9, permute_13)
        add = torch.empty((8, 128, 256))
        lib.add_kernel(mm_3, mm_5, add)
        return add, mm_4, mm_2, mm
