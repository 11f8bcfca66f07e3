"""Product of two matrices, scaled, with a residual and a leaky ReLU."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void matmul(const float* a, const float* b, const float* residual, float* y, int64_t rows,
                       int64_t inner, int64_t columns, float scale, float slope) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < inner; ++k) sum += a[i * inner + k] * b[k * columns + j];
            const float v = scale * sum + residual[i * columns + j];
            y[i * columns + j] = v > 0.0f ? v : slope * v;
        }
}
""")


class ModelNew(nn.Module):
    def __init__(self, scale: float, slope: float) -> None:
        super().__init__()
        self.scale, self.slope = scale, slope

    def forward(self, a: torch.Tensor, b: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        y = a.new_empty(a.shape[0], b.shape[1])
        inputs = (a.contiguous(), b.contiguous(), residual.contiguous())
        lib.matmul(*inputs, y, a.shape[0], a.shape[1], b.shape[1], self.scale, self.slope)
        return y
