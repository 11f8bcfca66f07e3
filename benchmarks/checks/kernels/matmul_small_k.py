"""Product of two matrices, by three loops."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void matmul(const float* a, const float* b, float* y, int64_t rows, int64_t inner,
                       int64_t columns) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < inner; ++k) sum += a[i * inner + k] * b[k * columns + j];
            y[i * columns + j] = sum;
        }
}
""")


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = a.new_empty(a.shape[0], b.shape[1])
        lib.matmul(a.contiguous(), b.contiguous(), y, a.shape[0], a.shape[1], b.shape[1])
        return y
