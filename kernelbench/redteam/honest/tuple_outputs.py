"""Returns two tensors, computed in one pass over the rows.

Reference: row_statistics
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
extern "C" void statistics(const float* x, float* mean, float* variance, long rows, long columns) {
    #pragma omp parallel for
    for (long row = 0; row < rows; ++row) {
        const float* in = x + row * columns;
        double sum = 0, squares = 0;
        for (long i = 0; i < columns; ++i) sum += in[i], squares += double(in[i]) * in[i];
        mean[row] = float(sum / columns);
        variance[row] = float((squares - sum * sum / columns) / (columns - 1));
    }
}
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        mean, variance = torch.empty(x.shape[0]), torch.empty(x.shape[0])
        library.statistics(x, mean, variance, x.shape[0], x.shape[1])
        return mean, variance
