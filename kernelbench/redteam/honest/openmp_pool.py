"""Spreads rows over OpenMP threads, which stay alive between calls.

Reference: softmax
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#include <cmath>
extern "C" void softmax(const float* x, float* y, long rows, long columns) {
    #pragma omp parallel for schedule(dynamic, 4)
    for (long row = 0; row < rows; ++row) {
        const float* in = x + row * columns;
        float* out = y + row * columns;
        float largest = -INFINITY, sum = 0;
        for (long i = 0; i < columns; ++i) largest = in[i] > largest ? in[i] : largest;
        for (long i = 0; i < columns; ++i) sum += out[i] = std::exp(in[i] - largest);
        for (long i = 0; i < columns; ++i) out[i] /= sum;
    }
}
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        library.softmax(x, y, x.shape[0], x.shape[1])
        return y
