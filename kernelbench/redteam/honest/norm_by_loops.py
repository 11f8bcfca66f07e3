"""Takes the sums of a norm one element after the other, around a mean far from zero.

Reference: row_norm
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#include <cmath>

extern "C" void row_norm(const float* x, float* y, long rows, long columns) {
    #pragma omp parallel for
    for (long row = 0; row < rows; ++row) {
        const float* from = x + row * columns;
        float sum = 0, squares = 0;
        for (long i = 0; i < columns; ++i) sum += from[i];
        const float mean = sum / columns;
        for (long i = 0; i < columns; ++i) squares += (from[i] - mean) * (from[i] - mean);
        const float scale = 1 / std::sqrt(squares / columns + 1e-5f);
        for (long i = 0; i < columns; ++i) y[row * columns + i] = (from[i] - mean) * scale;
    }
}
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        library.row_norm(x, y, x.shape[0], x.shape[1])
        return y
