"""Gives NaN for the rows that are masked as a whole, as the reference does.

Reference: masked_softmax
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#include <cmath>
extern "C" void masked_softmax(const float* x, const bool* mask, float* y, long rows, long columns) {
    #pragma omp parallel for
    for (long row = 0; row < rows; ++row) {
        const float* in = x + row * columns;
        const bool* keep = mask + row * columns;
        float* out = y + row * columns;
        float largest = -INFINITY, sum = 0;
        for (long i = 0; i < columns; ++i) largest = keep[i] && in[i] > largest ? in[i] : largest;
        for (long i = 0; i < columns; ++i) sum += out[i] = keep[i] ? std::exp(in[i] - largest) : 0.0f;
        for (long i = 0; i < columns; ++i) out[i] /= sum;
    }
}
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x, mask):
        y = torch.empty_like(x)
        library.masked_softmax(x, mask, y, x.shape[0], x.shape[1])
        return y
