"""Softmax of each row, in three passes."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        float most = -INFINITY;
        for (int64_t c = 0; c < columns; ++c) most = std::fmax(most, x[r * columns + c]);
        float sum = 0.0f;
        for (int64_t c = 0; c < columns; ++c) sum += std::exp(x[r * columns + c] - most);
        for (int64_t c = 0; c < columns; ++c) y[r * columns + c] = std::exp(x[r * columns + c] - most) / sum;
    }
}
""")


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.softmax(x.contiguous(), y, x.shape[0], x.shape[1])
        return y
