"""Mean over the middle dimension."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void mean(const float* x, float* y, int64_t batch, int64_t tokens, int64_t features) {
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t f = 0; f < features; ++f) {
            float sum = 0.0f;
            for (int64_t t = 0; t < tokens; ++t) sum += x[(b * tokens + t) * features + f];
            y[b * features + f] = sum / tokens;
        }
}
""")


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[0], x.shape[2])
        lib.mean(x.contiguous(), y, x.shape[0], x.shape[1], x.shape[2])
        return y
