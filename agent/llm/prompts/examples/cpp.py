"""y = silu(rms_norm(x) * weight), fused: one pass over memory instead of five."""

import torch
from torch import nn

from kernelwright.kernelbench import jit

lib = jit.compile_cpp(r"""
#include <cmath>

extern "C" void rms_norm_silu(const float* x, const float* weight, float* y,
                              long rows, long columns, float eps) {
    #pragma omp parallel for
    for (long r = 0; r < rows; ++r) {
        const float* from = x + r * columns;
        float* to = y + r * columns;
        float squares = 0;
        #pragma omp simd reduction(+ : squares)
        for (long c = 0; c < columns; ++c) squares += from[c] * from[c];
        const float scale = 1 / std::sqrt(squares / columns + eps);
        #pragma omp simd
        for (long c = 0; c < columns; ++c) {  // the row is in the cache by now
            const float v = from[c] * scale * weight[c];
            to[c] = v / (1 + std::exp(-v));
        }
    }
}
""")


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(
            torch.ones(columns)
        )  # named and shaped as in Model: it gets Model's values

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.rms_norm_silu(x, self.weight, y, x.numel() // x.shape[-1], x.shape[-1], 1e-6)
        return y
