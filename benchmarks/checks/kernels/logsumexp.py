"""Logarithm of the sum of exponentials of each row."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void logsumexp(const float* x, float* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        float most = -INFINITY;
        for (int64_t c = 0; c < columns; ++c) most = std::fmax(most, x[r * columns + c]);
        float sum = 0.0f;
        if (std::isinf(most)) {
            y[r] = most;
            continue;
        }
        for (int64_t c = 0; c < columns; ++c) sum += std::exp(x[r * columns + c] - most);
        y[r] = most + std::log(sum);
    }
}
""")


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[0])
        lib.logsumexp(x.contiguous(), y, x.shape[0], x.shape[1])
        return y
