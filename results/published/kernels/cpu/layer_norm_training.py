"""One fused kernel in C++ with OpenMP, built for any batch_size and tokens.

- `normalize_rows`: sum, div, sub, mul, add, rsqrt

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
#include <cmath>
#include <cstdint>

static inline float rsqrt_f32(float x) { return 1.0f / std::sqrt(x); }

// batch_size * tokens rows of 256; 3 passes over each.
// Schedule: block=64, streaming=off, prefetch=on.
extern "C" void normalize_rows(
    const float* hidden,
    const float* weight,
    const float* bias,
    float* row_mean_out,
    float* rsqrt_out,
    float* add_1_out,
    int64_t batch_size,
    int64_t tokens) {
    const int64_t ROWS = batch_size * tokens;
    constexpr int64_t COLUMNS = 256;
    constexpr int64_t BLOCK = 64;
    #pragma omp parallel for schedule(static) if (batch_size * tokens * 256 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* hidden_row = hidden + row * COLUMNS;
        float* add_1_out_row = add_1_out + row * COLUMNS;
        double row_sum_total = 0.0;
        for (int64_t start = 0; start < COLUMNS; start += BLOCK) {
            float row_sum = 0.0f;
            #pragma omp simd reduction(+ : row_sum)
            for (int64_t i = 0; i < BLOCK; ++i) {
                row_sum = row_sum + hidden_row[start + i];
            }
            row_sum_total += row_sum;
        }
        const float row_sum = static_cast<float>(row_sum_total);
        const float row_mean = row_sum / 256.0f;
        double squares_total = 0.0;
        for (int64_t start = 0; start < COLUMNS; start += BLOCK) {
            #pragma GCC unroll 1
            for (int64_t p = start; p < start + BLOCK; p += 16) {
                __builtin_prefetch(hidden_row + COLUMNS + p);
                __builtin_prefetch(add_1_out_row + p, 1);
            }
            float squares = 0.0f;
            #pragma omp simd reduction(+ : squares)
            for (int64_t i = 0; i < BLOCK; ++i) {
                const float centered = hidden_row[start + i] - row_mean;
                const float square = centered * centered;
                squares = squares + square;
            }
            squares_total += squares;
        }
        const float squares = static_cast<float>(squares_total);
        const float variance = squares / 256.0f;
        const float add = variance + 1e-05f;
        const float rsqrt = rsqrt_f32(add);
        for (int64_t start = 0; start < COLUMNS; start += BLOCK) {
            #pragma omp simd
            for (int64_t i = 0; i < BLOCK; ++i) {
                const float centered = hidden_row[start + i] - row_mean;
                const float mul = centered * rsqrt;
                const float mul_1 = mul * weight[start + i];
                const float add_1 = mul_1 + bias[start + i];
                add_1_out_row[start + i] = add_1;
            }
        }
        row_mean_out[row] = row_mean;
        rsqrt_out[row] = rsqrt;
    }
}
"""

lib = jit.compile_cpp(SOURCE)

HIDDEN_SHAPE = ("batch_size", "tokens", 256)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int | str, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one dtype, and for any size that only has a name."""
    wanted = tuple(size if isinstance(n, str) else n for n, size in zip(shape, tensor.shape, strict=False))
    if tensor.dim() != len(shape) or tensor.shape != wanted or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    def __init__(self, features: int):
        if features != 256:
            raise ValueError("these kernels are built for ModelNew(256)")
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    @torch.no_grad()
    def forward(self, hidden):
        hidden = checked("hidden", hidden, HIDDEN_SHAPE, torch.float32)
        batch_size, tokens = hidden.shape[0], hidden.shape[1]
        row_mean = torch.empty((batch_size, tokens, 1), dtype=torch.float32, device="cpu")
        rsqrt = torch.empty((batch_size, tokens, 1), dtype=torch.float32, device="cpu")
        add_1 = torch.empty((batch_size, tokens, 256), dtype=torch.float32, device="cpu")
        lib.normalize_rows(hidden, self.weight, self.bias, row_mean, rsqrt, add_1, batch_size, tokens)
        return add_1, row_mean, rsqrt
