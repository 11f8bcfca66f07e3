"""Adds up rows in 32 lanes, in another order than torch does.

Reference: row_mean
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
extern "C" void row_mean(const float* x, float* y, long rows, long columns) {
    #pragma omp parallel for
    for (long row = 0; row < rows; ++row) {
        const float* in = x + row * columns;
        float lanes[32] = {};
        for (long i = 0; i < columns; i += 32)
            for (long lane = 0; lane < 32; ++lane) lanes[lane] += in[i + lane];
        float sum = 0;
        for (float lane : lanes) sum += lane;
        y[row] = sum / columns;
    }
}
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        library.row_mean(x, y, x.shape[0], x.shape[1])
        return y
