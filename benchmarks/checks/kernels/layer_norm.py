"""Layer normalization of each row, its variance from a second pass."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void layer_norm(const float* x, const float* weight, const float* bias, float* y,
                           int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0.0f;
        for (int64_t c = 0; c < columns; ++c) sum += x[r * columns + c];
        const float mean = sum / columns;
        float squares = 0.0f;
        for (int64_t c = 0; c < columns; ++c) {
            const float off = x[r * columns + c] - mean;
            squares += off * off;
        }
        const float scale = 1.0f / std::sqrt(squares / columns + 1e-5f);
        for (int64_t c = 0; c < columns; ++c)
            y[r * columns + c] = (x[r * columns + c] - mean) * scale * weight[c] + bias[c];
    }
}
""")


class ModelNew(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.layer_norm(x.contiguous(), self.norm.weight, self.norm.bias, y, x.shape[0], x.shape[1])
        return y
