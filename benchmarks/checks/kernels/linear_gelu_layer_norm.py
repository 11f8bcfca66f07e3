"""A linear layer, GELU and layer normalization, row by row."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void fused(const float* x, const float* weight, const float* bias, const float* gain,
                      const float* shift, float* y, int64_t rows, int64_t inner, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0.0f;
        for (int64_t c = 0; c < columns; ++c) {
            float v = bias[c];
            for (int64_t k = 0; k < inner; ++k) v += x[r * inner + k] * weight[c * inner + k];
            v = 0.5f * v * (1.0f + std::erf(v * 0.70710678f));
            y[r * columns + c] = v;
            sum += v;
        }
        const float mean = sum / columns;
        float squares = 0.0f;
        for (int64_t c = 0; c < columns; ++c) {
            const float off = y[r * columns + c] - mean;
            squares += off * off;
        }
        const float scale = 1.0f / std::sqrt(squares / columns + 1e-5f);
        for (int64_t c = 0; c < columns; ++c)
            y[r * columns + c] = (y[r * columns + c] - mean) * scale * gain[c] + shift[c];
    }
}
""")


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.LayerNorm(out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns, inner = self.linear.weight.shape
        y = x.new_empty(x.shape[0], columns)
        weights = (self.linear.weight, self.linear.bias, self.norm.weight, self.norm.bias)
        lib.fused(x.contiguous(), *weights, y, x.shape[0], inner, columns)
        return y
