"""One fused kernel in C++ with OpenMP, built for one set of shapes.

- `normalize_rows`: sum, div, sub, mul, add, rsqrt

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
#include <cmath>
#include <cstdint>

static inline float rsqrt_f32(float x) { return 1.0f / std::sqrt(x); }

// 1024 rows of 256; 3 passes over each.
// Schedule: block=256, streaming=off, prefetch=on.
extern "C" void normalize_rows(
    const float* hidden,
    const float* weight,
    const float* bias,
    float* row_mean_out,
    float* rsqrt_out,
    float* add_1_out) {
    constexpr int64_t ROWS = 1024, COLUMNS = 256;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* hidden_row = hidden + row * COLUMNS;
        float* add_1_out_row = add_1_out + row * COLUMNS;
        float row_sum = 0.0f;
        #pragma omp simd reduction(+ : row_sum)
        for (int64_t i = 0; i < COLUMNS; ++i) {
            row_sum = row_sum + hidden_row[i];
        }
        const float row_mean = row_sum / 256.0f;
        float squares = 0.0f;
        #pragma GCC unroll 1
        for (int64_t p = 0; p < COLUMNS; p += 16) {
            __builtin_prefetch(hidden_row + COLUMNS + p);
            __builtin_prefetch(add_1_out_row + p, 1);
        }
        #pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float centered = hidden_row[i] - row_mean;
            const float square = centered * centered;
            squares = squares + square;
        }
        const float variance = squares / 256.0f;
        const float add = variance + 1e-05f;
        const float rsqrt = rsqrt_f32(add);
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float centered = hidden_row[i] - row_mean;
            const float mul = centered * rsqrt;
            const float mul_1 = mul * weight[i];
            const float add_1 = mul_1 + bias[i];
            add_1_out_row[i] = add_1;
        }
        row_mean_out[row] = row_mean;
        rsqrt_out[row] = rsqrt;
    }
}
"""

lib = jit.compile_cpp(SOURCE)

HIDDEN_SHAPE = (8, 128, 256)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one shape and dtype."""
    if tensor.shape != shape or tensor.dtype != dtype:
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
        row_mean = torch.empty((8, 128, 1))
        rsqrt = torch.empty((8, 128, 1))
        add_1 = torch.empty((8, 128, 256))
        lib.normalize_rows(hidden, self.weight, self.bias, row_mean, rsqrt, add_1)
        return add_1, row_mean, rsqrt
