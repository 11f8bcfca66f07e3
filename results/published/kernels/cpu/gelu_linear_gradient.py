"""One fused kernel in C++ with OpenMP, built for one set of shapes.

- `mul_add_tanh_sub_rows`: mul, add, tanh, sub, sum

Left to torch: mm.
Schedule: fuse=all, vector=512, unroll=off; each kernel names its own.
"""

import torch
from torch import nn

from kernelbench import jit

SOURCE = r"""
#if defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=512")
#endif
#include <algorithm>
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

// 1024 columns of 1024, neighbours side by side; 1 pass over each.
// Schedule: parts=on, block=1024.
extern "C" void mul_add_tanh_sub_rows(
    const float* saved_0,
    const float* grad_output,
    float* mul_11_out,
    float* sum_1_out) {
    constexpr int64_t WIDTH = 1024, BLOCK = 1024;
    constexpr int64_t BLOCKS = (WIDTH + BLOCK - 1) / BLOCK;
    constexpr int64_t ROWS = 1 * BLOCKS;
    constexpr int64_t PARTS = 32;
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t first = row % BLOCKS * BLOCK;
        const int64_t n = std::min(BLOCK, WIDTH - first);
        const float* saved_0_row = saved_0 + first;
        const float* grad_output_row = grad_output + first;
        float* mul_11_out_row = mul_11_out + first;
        float* sum_1_out_row = sum_1_out + first;
        alignas(64) float sum_1[BLOCK];
        alignas(64) double sum_1_parts[PARTS][BLOCK];
        #pragma omp parallel for schedule(static)
        for (int64_t part = 0; part < PARTS; ++part) {
            alignas(64) float sum_1_part[BLOCK];
            alignas(64) double sum_1_part_total[BLOCK];
            for (int64_t i = 0; i < n; ++i) sum_1_part_total[i] = 0.0;
            for (int64_t i = 0; i < n; ++i) sum_1_part[i] = 0.0f;
            for (int64_t j = part * 1024 / PARTS; j < (part + 1) * 1024 / PARTS; ++j) {
                #pragma omp simd
                for (int64_t i = 0; i < n; ++i) {
                    const float mul = saved_0_row[j * 1024 + i] * saved_0_row[j * 1024 + i];
                    const float mul_1 = mul * saved_0_row[j * 1024 + i];
                    const float mul_2 = mul_1 * 0.044715f;
                    const float add = saved_0_row[j * 1024 + i] + mul_2;
                    const float mul_3 = add * 0.7978845608028654f;
                    const float tanh = tanh_f32(mul_3);
                    const float mul_4 = saved_0_row[j * 1024 + i] * 0.5f;
                    const float add_1 = tanh + 1.0f;
                    const float mul_5 = add_1 * 0.5f;
                    const float mul_6 = tanh * tanh;
                    const float sub = 1.0f - mul_6;
                    const float mul_7 = mul * 0.134145f;
                    const float add_2 = mul_7 + 1.0f;
                    const float mul_8 = add_2 * 0.7978845608028654f;
                    const float mul_9 = mul_4 * sub;
                    const float mul_10 = mul_9 * mul_8;
                    const float add_3 = mul_5 + mul_10;
                    const float mul_11 = grad_output_row[j * 1024 + i] * add_3;
                    sum_1_part[i] = sum_1_part[i] + mul_11;
                    mul_11_out_row[j * 1024 + i] = mul_11;
                }
                if ((j) % 256 == 255) {
                    #pragma omp simd
                    for (int64_t i = 0; i < n; ++i) {
                        sum_1_part_total[i] += sum_1_part[i];
                        sum_1_part[i] = 0.0f;
                    }
                }
            }
            #pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
                sum_1_part_total[i] += sum_1_part[i];
                sum_1_part[i] = 0.0f;
            }
            for (int64_t i = 0; i < n; ++i) sum_1_parts[part][i] = sum_1_part_total[i];
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            double total = sum_1_parts[0][i];
            for (int64_t part = 1; part < PARTS; ++part) total = total + sum_1_parts[part][i];
            sum_1[i] = static_cast<float>(total);
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            sum_1_out_row[i] = sum_1[i];
        }
    }
}
"""

lib = jit.compile_cpp(SOURCE)

GRAD_OUTPUT_SHAPE = (8, 128, 1024)
X_SHAPE = (8, 128, 256)
LINEAR_WEIGHT_SHAPE = (1024, 256)
SAVED_0_SHAPE = (1024, 1024)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one shape and dtype."""
    if tensor.shape != shape or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, grad_output, x, linear_weight, saved_0):
        grad_output = checked("grad_output", grad_output, GRAD_OUTPUT_SHAPE, torch.float32)
        x = checked("x", x, X_SHAPE, torch.float32)
        linear_weight = checked("linear_weight", linear_weight, LINEAR_WEIGHT_SHAPE, torch.float32)
        saved_0 = checked("saved_0", saved_0, SAVED_0_SHAPE, torch.float32)
        mul_11 = torch.empty((8, 128, 1024))
        sum_1 = torch.empty((1, 1024))
        lib.mul_add_tanh_sub_rows(saved_0, grad_output, mul_11, sum_1)
        view_2 = mul_11.view((1024, 1024))
        permute = linear_weight.permute(1, 0)
        permute_1 = permute.permute(1, 0)
        mm = torch.mm(view_2, permute_1)
        permute_2 = view_2.permute(1, 0)
        view = x.reshape(1024, 256)
        mm_1 = torch.mm(permute_2, view)
        view_4 = mm.view((8, 128, 256))
        view_3 = sum_1.view((1024,))
        return view_4, mm_1, view_3
