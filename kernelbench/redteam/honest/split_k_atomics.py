"""Splits the inner dimension among threads that add to the output atomically, in whatever order they come.

Reference: mean_product
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#include <vector>
extern "C" void mean_product(const float* a, const float* b, float* c, long rows, long depth, long columns) {
    const long chunk = 256;
    for (long i = 0; i < rows * columns; ++i) c[i] = 0;
    #pragma omp parallel for schedule(dynamic)
    for (long first = 0; first < depth; first += chunk) {
        std::vector<float> sums(rows * columns);
        for (long row = 0; row < rows; ++row)
            for (long k = first; k < first + chunk; ++k)
                for (long column = 0; column < columns; ++column)
                    sums[row * columns + column] += a[row * depth + k] * b[k * columns + column];
        for (long i = 0; i < rows * columns; ++i) {
            #pragma omp atomic
            c[i] += sums[i] / depth;
        }
    }
}
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        library.mean_product(a, b, c, a.shape[0], a.shape[1], b.shape[1])
        return c
