"""Root mean square normalization of each row."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void rms_norm(const float* x, const float* weight, float* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        float squares = 0.0f;
        for (int64_t c = 0; c < columns; ++c) squares += x[r * columns + c] * x[r * columns + c];
        const float scale = 1.0f / std::sqrt(squares / columns + 1e-6f);
        for (int64_t c = 0; c < columns; ++c) y[r * columns + c] = x[r * columns + c] * scale * weight[c];
    }
}
""")


class ModelNew(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.rms_norm(x.contiguous(), self.norm.weight, y, x.shape[0], x.shape[1])
        return y
