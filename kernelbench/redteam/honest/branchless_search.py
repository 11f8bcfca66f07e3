"""Searches sorted edges in other steps than torch does, which unsorted ones would show.

Reference: sorted_edges
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#include <cstdint>

extern "C" void find(const float* edges, const float* x, int64_t* y, int64_t bins, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) {
        const float* base = edges;
        int64_t rest = bins;
        while (rest > 1) {
            const int64_t half = rest / 2;
            base += (base[half - 1] < x[i]) * half;
            rest -= half;
        }
        y[i] = (base - edges) + (*base < x[i]);
    }
}
"""
module = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, edges, x):
        y = torch.empty(x.shape, dtype=torch.int64)
        module.find(edges, x, y, edges.numel(), x.numel())
        return y
