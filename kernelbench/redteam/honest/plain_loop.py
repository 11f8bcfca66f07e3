"""Adds up a million numbers one after the other, which no compiler reorders.

Reference: long_sum
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
extern "C" void row_sum(const float* x, float* y, long rows, long columns) {
    #pragma omp parallel for
    for (long row = 0; row < rows; ++row) {
        float sum = 0;
        for (long i = 0; i < columns; ++i) sum += x[row * columns + i];
        y[row] = sum;
    }
}
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        library.row_sum(x, y, x.shape[0], x.shape[1])
        return y
