"""Builds and calls a kernel whose result nobody uses, and returns torch's.

Reference: softmax
Stopped: it is timed at what it truly takes, and its share of own kernels is reported
Correct: it does compute what it should, and gains nothing
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
extern "C" void softmax(const float* x, float* y, long count) {
    for (long i = 0; i < count; ++i) y[i] = x[i];
}
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        unused = torch.empty(8)
        library.softmax(x[0, :8].contiguous(), unused, 8)
        return torch.softmax(x, dim=1)
