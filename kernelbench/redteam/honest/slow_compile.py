"""Takes its compiler half a minute: a table is computed while it compiles.

Reference: scaled_residual
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
constexpr unsigned step(unsigned seed) {
    unsigned x = seed;
    for (int i = 0; i < 1000; ++i)
        for (int j = 0; j < 1000; ++j) x = x * 1664525u + 1013904223u;
    return x;
}
template <unsigned N> struct Table { static constexpr unsigned sum = Table<N - 1>::sum + step(N); };
template <> struct Table<0> { static constexpr unsigned sum = 0; };

extern "C" void scaled_residual(const float* x, const float* y, float* z, long count, int* sum) {
    *sum = Table<STEPS>::sum;
    #pragma omp parallel for
    for (long i = 0; i < count; ++i) z[i] = x[i] + 1e-3f * y[i];
}
""".replace("STEPS", "5")
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x, y):
        z, table = torch.empty_like(x), torch.empty(1, dtype=torch.int32)
        library.scaled_residual(x, y, z, x.numel(), table)
        return z
