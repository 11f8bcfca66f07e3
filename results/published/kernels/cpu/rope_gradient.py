"""6 fused kernels in C++ with OpenMP, built for one set of shapes.

- `neg_mul`: neg, mul
- `mul_kernel`: mul
- `mul_sum_add_rows`: mul, sum, add
- `neg_mul_add`: neg, mul, add
- `mul_neg_add`: mul, neg, add
- `sum_add_rows`: sum, add

Nothing is left to torch.
Schedule: fuse=all, vector=256, unroll=off; each kernel names its own.
"""

import torch
from torch import nn

from kernelbench import jit

SOURCE = r"""
#if defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=256")
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>

// 8192 rows of 32; 1 pass over each.
// Schedule: streaming=off.
extern "C" void neg_mul(const float* query, const float* grad_output_0, float* mul_4_0_out) {
    constexpr int64_t ROWS = 8192, COLUMNS = 32;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* query_row = query + row * 64 + 32;
        const float* grad_output_0_row = grad_output_0 + row * 64;
        float* mul_4_0_out_row = mul_4_0_out + row * 64;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float neg = -query_row[i];
            const float mul_4_0 = grad_output_0_row[i] * neg;
            mul_4_0_out_row[i] = mul_4_0;
        }
    }
}

// 8192 rows of 32; 1 pass over each.
// Schedule: streaming=off.
extern "C" void mul_kernel(const float* grad_output_0, const float* query, float* mul_4_1_out) {
    constexpr int64_t ROWS = 8192, COLUMNS = 32;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* grad_output_0_row = grad_output_0 + row * 64 + 32;
        const float* query_row = query + row * 64;
        float* mul_4_1_out_row = mul_4_1_out + row * 64 + 32;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float mul_4_1 = grad_output_0_row[i] * query_row[i];
            mul_4_1_out_row[i] = mul_4_1;
        }
    }
}

// 8192 columns of 64, neighbours side by side; 1 pass over each.
// Schedule: streaming=off.
extern "C" void mul_sum_add_rows(
    const float* grad_output_1,
    const float* sine,
    const float* key,
    const float* grad_output_0,
    const float* query,
    float* mul_1_out,
    float* mul_5_out,
    float* add_2_out) {
    constexpr int64_t WIDTH = 64, BLOCK = 64;
    constexpr int64_t BLOCKS = (WIDTH + BLOCK - 1) / BLOCK;
    constexpr int64_t ROWS = 128 * BLOCKS;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t outer = row / BLOCKS;
        const int64_t first = row % BLOCKS * BLOCK;
        const int64_t n = std::min(BLOCK, WIDTH - first);
        const float* grad_output_1_row = grad_output_1 + outer * 64 + first;
        const float* sine_row = sine + outer * 64 + first;
        const float* key_row = key + outer * 64 + first;
        const float* grad_output_0_row = grad_output_0 + outer * 64 + first;
        const float* query_row = query + outer * 64 + first;
        float* mul_1_out_row = mul_1_out + outer * 64 + first;
        float* mul_5_out_row = mul_5_out + outer * 64 + first;
        float* add_2_out_row = add_2_out + outer * 64 + first;
        alignas(64) float sum_2[BLOCK];
        alignas(64) float sum_4[BLOCK];
        alignas(64) float add_2[BLOCK];
        for (int64_t i = 0; i < n; ++i) sum_2[i] = 0.0f;
        for (int64_t i = 0; i < n; ++i) sum_4[i] = 0.0f;
        for (int64_t j = 0; j < 64; ++j) {
            #pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
                const float mul_1 = grad_output_1_row[j * 8192 + i] * sine_row[i];
                const float mul_2 = grad_output_1_row[j * 8192 + i] * key_row[j * 8192 + i];
                const float mul_5 = grad_output_0_row[j * 8192 + i] * sine_row[i];
                const float mul_6 = grad_output_0_row[j * 8192 + i] * query_row[j * 8192 + i];
                sum_2[i] = sum_2[i] + mul_2;
                sum_4[i] = sum_4[i] + mul_6;
                mul_1_out_row[j * 8192 + i] = mul_1;
                mul_5_out_row[j * 8192 + i] = mul_5;
            }
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            add_2[i] = sum_2[i] + sum_4[i];
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            add_2_out_row[i] = add_2[i];
        }
    }
}

// 8192 rows of 32; 1 pass over each.
// Schedule: streaming=off.
extern "C" void neg_mul_add(
    const float* key,
    const float* grad_output_1,
    const float* cosine,
    const float* mul_1,
    const float* grad_output_0,
    const float* mul_5,
    float* mul_0_out,
    float* add_0_out,
    float* add_3_0_out) {
    constexpr int64_t ROWS = 8192, COLUMNS = 32;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* key_row = key + row * 64 + 32;
        const float* grad_output_1_row = grad_output_1 + row * 64;
        const float* cosine_row = cosine + row % 128 * 64;
        const float* mul_1_row = mul_1 + row * 64 + 32;
        const float* grad_output_0_row = grad_output_0 + row * 64;
        const float* mul_5_row = mul_5 + row * 64 + 32;
        float* mul_0_out_row = mul_0_out + row * 64;
        float* add_0_out_row = add_0_out + row * 64;
        float* add_3_0_out_row = add_3_0_out + row * 64;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float neg_1 = -key_row[i];
            const float mul_0 = grad_output_1_row[i] * neg_1;
            const float mul_3_0 = grad_output_1_row[i] * cosine_row[i];
            const float add_0 = mul_3_0 + mul_1_row[i];
            const float mul_7_0 = grad_output_0_row[i] * cosine_row[i];
            const float add_3_0 = mul_7_0 + mul_5_row[i];
            mul_0_out_row[i] = mul_0;
            add_0_out_row[i] = add_0;
            add_3_0_out_row[i] = add_3_0;
        }
    }
}

// 8192 rows of 32; 1 pass over each.
// Schedule: streaming=off.
extern "C" void mul_neg_add(
    const float* grad_output_1,
    const float* key,
    const float* mul_1,
    const float* cosine,
    const float* mul_5,
    const float* grad_output_0,
    float* mul_1__out,
    float* add_1__out,
    float* add_3_1_out) {
    constexpr int64_t ROWS = 8192, COLUMNS = 32;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* grad_output_1_row = grad_output_1 + row * 64 + 32;
        const float* key_row = key + row * 64;
        const float* mul_1_row = mul_1 + row * 64;
        const float* cosine_row = cosine + row % 128 * 64 + 32;
        const float* mul_5_row = mul_5 + row * 64;
        const float* grad_output_0_row = grad_output_0 + row * 64 + 32;
        float* mul_1__out_row = mul_1__out + row * 64 + 32;
        float* add_1__out_row = add_1__out + row * 64 + 32;
        float* add_3_1_out_row = add_3_1_out + row * 64 + 32;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float mul_1_ = grad_output_1_row[i] * key_row[i];
            const float neg_2 = -mul_1_row[i];
            const float mul_3_1 = grad_output_1_row[i] * cosine_row[i];
            const float add_1_ = mul_3_1 + neg_2;
            const float neg_3 = -mul_5_row[i];
            const float mul_7_1 = grad_output_0_row[i] * cosine_row[i];
            const float add_3_1 = mul_7_1 + neg_3;
            mul_1__out_row[i] = mul_1_;
            add_1__out_row[i] = add_1_;
            add_3_1_out_row[i] = add_3_1;
        }
    }
}

// 8192 columns of 64, neighbours side by side; 1 pass over each.
extern "C" void sum_add_rows(const float* mul, const float* mul_4, float* add_1_out) {
    constexpr int64_t WIDTH = 64, BLOCK = 64;
    constexpr int64_t BLOCKS = (WIDTH + BLOCK - 1) / BLOCK;
    constexpr int64_t ROWS = 128 * BLOCKS;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t outer = row / BLOCKS;
        const int64_t first = row % BLOCKS * BLOCK;
        const int64_t n = std::min(BLOCK, WIDTH - first);
        const float* mul_row = mul + outer * 64 + first;
        const float* mul_4_row = mul_4 + outer * 64 + first;
        float* add_1_out_row = add_1_out + outer * 64 + first;
        alignas(64) float sum_1[BLOCK];
        alignas(64) float sum_3[BLOCK];
        alignas(64) float add_1[BLOCK];
        for (int64_t i = 0; i < n; ++i) sum_1[i] = 0.0f;
        for (int64_t i = 0; i < n; ++i) sum_3[i] = 0.0f;
        for (int64_t j = 0; j < 64; ++j) {
            #pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
                sum_1[i] = sum_1[i] + mul_row[j * 8192 + i];
                sum_3[i] = sum_3[i] + mul_4_row[j * 8192 + i];
            }
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            add_1[i] = sum_1[i] + sum_3[i];
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            add_1_out_row[i] = add_1[i];
        }
    }
}
"""

lib = jit.compile_cpp(SOURCE)

GRAD_OUTPUT_0_SHAPE = (8, 8, 128, 64)
GRAD_OUTPUT_1_SHAPE = (8, 8, 128, 64)
QUERY_SHAPE = (8, 8, 128, 64)
KEY_SHAPE = (8, 8, 128, 64)
COSINE_SHAPE = (128, 64)
SINE_SHAPE = (128, 64)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one shape and dtype."""
    if tensor.shape != shape or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, grad_output_0, grad_output_1, query, key, cosine, sine):
        grad_output_0 = checked("grad_output_0", grad_output_0, GRAD_OUTPUT_0_SHAPE, torch.float32)
        grad_output_1 = checked("grad_output_1", grad_output_1, GRAD_OUTPUT_1_SHAPE, torch.float32)
        query = checked("query", query, QUERY_SHAPE, torch.float32)
        key = checked("key", key, KEY_SHAPE, torch.float32)
        cosine = checked("cosine", cosine, COSINE_SHAPE, torch.float32)
        sine = checked("sine", sine, SINE_SHAPE, torch.float32)
        mul_4 = torch.empty((8, 8, 128, 64))
        lib.neg_mul(query, grad_output_0, mul_4)
        lib.mul_kernel(grad_output_0, query, mul_4)
        mul_1 = torch.empty((8, 8, 128, 64))
        mul_5 = torch.empty((8, 8, 128, 64))
        add_2 = torch.empty((128, 64))
        lib.mul_sum_add_rows(grad_output_1, sine, key, grad_output_0, query, mul_1, mul_5, add_2)
        mul = torch.empty((8, 8, 128, 64))
        add = torch.empty((8, 8, 128, 64))
        add_3 = torch.empty((8, 8, 128, 64))
        lib.neg_mul_add(key, grad_output_1, cosine, mul_1, grad_output_0, mul_5, mul, add, add_3)
        lib.mul_neg_add(grad_output_1, key, mul_1, cosine, mul_5, grad_output_0, mul, add, add_3)
        add_1 = torch.empty((128, 64))
        lib.sum_add_rows(mul, mul_4, add_1)
        return add_3, add, add_2, add_1
