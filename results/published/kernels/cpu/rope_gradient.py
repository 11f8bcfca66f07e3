"""5 fused kernels in C++ with OpenMP, built for any batch_size and tokens.

- `neg_mul`: neg, mul
- `mul_kernel`: mul
- `mul_sum_add_rows`: mul, sum, add
- `neg_mul_add`: neg, mul, add
- `sum_add_rows`: sum, add

Nothing is left to torch.
Schedule: fuse=all, vector=512, unroll=off; each kernel names its own.
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

// batch_size * tokens * 8 rows of 32; 1 pass over each.
// Schedule: streaming=off.
extern "C" void neg_mul(
    const float* query,
    const float* grad_output_0,
    float* mul_4_0_out,
    int64_t batch_size,
    int64_t tokens) {
    const int64_t ROWS = batch_size * tokens * 8;
    constexpr int64_t COLUMNS = 32;
    #pragma omp parallel for schedule(static) if (batch_size * tokens * 256 >= 32768)
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

// batch_size * tokens * 8 rows of 32; 1 pass over each.
// Schedule: streaming=off.
extern "C" void mul_kernel(
    const float* grad_output_0,
    const float* query,
    float* mul_4_1_out,
    int64_t batch_size,
    int64_t tokens) {
    const int64_t ROWS = batch_size * tokens * 8;
    constexpr int64_t COLUMNS = 32;
    #pragma omp parallel for schedule(static) if (batch_size * tokens * 256 >= 32768)
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

// tokens * 64 columns of batch_size * 8, neighbours side by side; 1 pass over each.
extern "C" void mul_sum_add_rows(
    const float* grad_output_1,
    const float* key,
    const float* grad_output_0,
    const float* query,
    float* add_2_out,
    int64_t batch_size,
    int64_t tokens) {
    constexpr int64_t WIDTH = 64, BLOCK = 64;
    constexpr int64_t BLOCKS = (WIDTH + BLOCK - 1) / BLOCK;
    const int64_t ROWS = tokens * BLOCKS;
    #pragma omp parallel for schedule(static) if (batch_size * tokens * 512 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t outer = row / BLOCKS;
        const int64_t first = row % BLOCKS * BLOCK;
        const int64_t n = std::min(BLOCK, WIDTH - first);
        const float* grad_output_1_row = grad_output_1 + outer * 64 + first;
        const float* key_row = key + outer * 64 + first;
        const float* grad_output_0_row = grad_output_0 + outer * 64 + first;
        const float* query_row = query + outer * 64 + first;
        float* add_2_out_row = add_2_out + outer * 64 + first;
        alignas(64) float sum_2[BLOCK];
        alignas(64) float sum_4[BLOCK];
        alignas(64) float add_2[BLOCK];
        alignas(64) double sum_2_total[BLOCK];
        for (int64_t i = 0; i < n; ++i) sum_2_total[i] = 0.0;
        for (int64_t i = 0; i < n; ++i) sum_2[i] = 0.0f;
        alignas(64) double sum_4_total[BLOCK];
        for (int64_t i = 0; i < n; ++i) sum_4_total[i] = 0.0;
        for (int64_t i = 0; i < n; ++i) sum_4[i] = 0.0f;
        for (int64_t j = 0; j < (batch_size * 8); ++j) {
            #pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
                const float mul_2 = grad_output_1_row[j * (tokens * 64) + i] * key_row[j * (tokens * 64) + i];
                const float mul_6 = grad_output_0_row[j * (tokens * 64) + i] * query_row[j * (tokens * 64) + i];
                sum_2[i] = sum_2[i] + mul_2;
                sum_4[i] = sum_4[i] + mul_6;
            }
            if ((j) % 256 == 255) {
                #pragma omp simd
                for (int64_t i = 0; i < n; ++i) {
                    sum_2_total[i] += sum_2[i];
                    sum_2[i] = 0.0f;
                }
                #pragma omp simd
                for (int64_t i = 0; i < n; ++i) {
                    sum_4_total[i] += sum_4[i];
                    sum_4[i] = 0.0f;
                }
            }
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            sum_2_total[i] += sum_2[i];
            sum_2[i] = 0.0f;
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            sum_4_total[i] += sum_4[i];
            sum_4[i] = 0.0f;
        }
        for (int64_t i = 0; i < n; ++i) sum_2[i] = static_cast<float>(sum_2_total[i]);
        for (int64_t i = 0; i < n; ++i) sum_4[i] = static_cast<float>(sum_4_total[i]);
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

// batch_size * tokens * 8 rows of 32; 1 pass over each.
// Schedule: streaming=off.
extern "C" void neg_mul_add(
    const float* key,
    const float* grad_output_1,
    const float* sine,
    const float* cosine,
    const float* grad_output_0,
    float* mul_0_out,
    float* mul_1__out,
    float* add_0_out,
    float* add_1__out,
    float* add_3_0_out,
    float* add_3_1_out,
    int64_t batch_size,
    int64_t tokens) {
    const int64_t ROWS = batch_size * tokens * 8;
    constexpr int64_t COLUMNS = 32;
    #pragma omp parallel for schedule(static) if (batch_size * tokens * 256 >= 8192)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* key_row = key + row * 64 + 32;
        const float* grad_output_1_row = grad_output_1 + row * 64;
        const float* grad_output_1_row_ = grad_output_1 + row * 64 + 32;
        const float* key_row_ = key + row * 64;
        const float* sine_row = sine + row % tokens * 64;
        const float* sine_row_ = sine + row % tokens * 64 + 32;
        const float* cosine_row = cosine + row % tokens * 64;
        const float* cosine_row_ = cosine + row % tokens * 64 + 32;
        const float* grad_output_0_row = grad_output_0 + row * 64;
        const float* grad_output_0_row_ = grad_output_0 + row * 64 + 32;
        float* mul_0_out_row = mul_0_out + row * 64;
        float* mul_1__out_row = mul_1__out + row * 64 + 32;
        float* add_0_out_row = add_0_out + row * 64;
        float* add_1__out_row = add_1__out + row * 64 + 32;
        float* add_3_0_out_row = add_3_0_out + row * 64;
        float* add_3_1_out_row = add_3_1_out + row * 64 + 32;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float neg_1 = -key_row[i];
            const float mul_0 = grad_output_1_row[i] * neg_1;
            const float mul_1_ = grad_output_1_row_[i] * key_row_[i];
            const float mul_1_part = grad_output_1_row[i] * sine_row[i];
            const float mul_1_part_ = grad_output_1_row_[i] * sine_row_[i];
            const float neg_2 = -mul_1_part;
            const float mul_3_0 = grad_output_1_row[i] * cosine_row[i];
            const float mul_3_1 = grad_output_1_row_[i] * cosine_row_[i];
            const float add_0 = mul_3_0 + mul_1_part_;
            const float add_1_ = mul_3_1 + neg_2;
            const float mul_5_part = grad_output_0_row[i] * sine_row[i];
            const float mul_5_part_ = grad_output_0_row_[i] * sine_row_[i];
            const float neg_3 = -mul_5_part;
            const float mul_7_0 = grad_output_0_row[i] * cosine_row[i];
            const float mul_7_1 = grad_output_0_row_[i] * cosine_row_[i];
            const float add_3_0 = mul_7_0 + mul_5_part_;
            const float add_3_1 = mul_7_1 + neg_3;
            mul_0_out_row[i] = mul_0;
            mul_1__out_row[i] = mul_1_;
            add_0_out_row[i] = add_0;
            add_1__out_row[i] = add_1_;
            add_3_0_out_row[i] = add_3_0;
            add_3_1_out_row[i] = add_3_1;
        }
    }
}

// tokens * 64 columns of batch_size * 8, neighbours side by side; 1 pass over each.
extern "C" void sum_add_rows(
    const float* mul,
    const float* mul_4,
    float* add_1_out,
    int64_t batch_size,
    int64_t tokens) {
    constexpr int64_t WIDTH = 64, BLOCK = 64;
    constexpr int64_t BLOCKS = (WIDTH + BLOCK - 1) / BLOCK;
    const int64_t ROWS = tokens * BLOCKS;
    #pragma omp parallel for schedule(static) if (batch_size * tokens * 512 >= 32768)
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
        alignas(64) double sum_1_total[BLOCK];
        for (int64_t i = 0; i < n; ++i) sum_1_total[i] = 0.0;
        for (int64_t i = 0; i < n; ++i) sum_1[i] = 0.0f;
        alignas(64) double sum_3_total[BLOCK];
        for (int64_t i = 0; i < n; ++i) sum_3_total[i] = 0.0;
        for (int64_t i = 0; i < n; ++i) sum_3[i] = 0.0f;
        for (int64_t j = 0; j < (batch_size * 8); ++j) {
            #pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
                sum_1[i] = sum_1[i] + mul_row[j * (tokens * 64) + i];
                sum_3[i] = sum_3[i] + mul_4_row[j * (tokens * 64) + i];
            }
            if ((j) % 256 == 255) {
                #pragma omp simd
                for (int64_t i = 0; i < n; ++i) {
                    sum_1_total[i] += sum_1[i];
                    sum_1[i] = 0.0f;
                }
                #pragma omp simd
                for (int64_t i = 0; i < n; ++i) {
                    sum_3_total[i] += sum_3[i];
                    sum_3[i] = 0.0f;
                }
            }
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            sum_1_total[i] += sum_1[i];
            sum_1[i] = 0.0f;
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            sum_3_total[i] += sum_3[i];
            sum_3[i] = 0.0f;
        }
        for (int64_t i = 0; i < n; ++i) sum_1[i] = static_cast<float>(sum_1_total[i]);
        for (int64_t i = 0; i < n; ++i) sum_3[i] = static_cast<float>(sum_3_total[i]);
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

GRAD_OUTPUT_0_SHAPE = ("batch_size", 8, "tokens", 64)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int | str, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one dtype, and for any size that only has a name."""
    wanted = tuple(size if isinstance(n, str) else n for n, size in zip(shape, tensor.shape, strict=False))
    if tensor.dim() != len(shape) or tensor.shape != wanted or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, grad_output_0, grad_output_1, query, key, cosine, sine):
        grad_output_0 = checked("grad_output_0", grad_output_0, GRAD_OUTPUT_0_SHAPE, torch.float32)
        batch_size, tokens = grad_output_0.shape[0], grad_output_0.shape[2]
        grad_output_1 = checked("grad_output_1", grad_output_1, (batch_size, 8, tokens, 64), torch.float32)
        query = checked("query", query, (batch_size, 8, tokens, 64), torch.float32)
        key = checked("key", key, (batch_size, 8, tokens, 64), torch.float32)
        cosine = checked("cosine", cosine, (tokens, 64), torch.float32)
        sine = checked("sine", sine, (tokens, 64), torch.float32)
        mul_4 = torch.empty((batch_size, 8, tokens, 64), dtype=torch.float32, device="cpu")
        lib.neg_mul(query, grad_output_0, mul_4, batch_size, tokens)
        lib.mul_kernel(grad_output_0, query, mul_4, batch_size, tokens)
        add_2 = torch.empty((tokens, 64), dtype=torch.float32, device="cpu")
        lib.mul_sum_add_rows(grad_output_1, key, grad_output_0, query, add_2, batch_size, tokens)
        mul = torch.empty((batch_size, 8, tokens, 64), dtype=torch.float32, device="cpu")
        add = torch.empty((batch_size, 8, tokens, 64), dtype=torch.float32, device="cpu")
        add_3 = torch.empty((batch_size, 8, tokens, 64), dtype=torch.float32, device="cpu")
        lib.neg_mul_add(key, grad_output_1, sine, cosine, grad_output_0, mul, mul, add, add, add_3, add_3, batch_size, tokens)
        add_1 = torch.empty((tokens, 64), dtype=torch.float32, device="cpu")
        lib.sum_add_rows(mul, mul_4, add_1, batch_size, tokens)
        return add_3, add, add_2, add_1
