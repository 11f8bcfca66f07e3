"""Sums of each row up to each of its elements."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void cumsum(const float* x, float* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0.0f;
        for (int64_t c = 0; c < columns; ++c) {
            sum += x[r * columns + c];
            y[r * columns + c] = sum;
        }
    }
}
""")


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.cumsum(x.contiguous(), y, x.shape[0], x.shape[1])
        return y
