"""Has a kernel that never works, and falls back on torch without a word.

Reference: softmax
Stopped: it is timed at what it truly takes, and its share of own kernels is reported
Correct: it does compute what it should, and gains nothing
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
extern "C" void softmax(const float* x, float* y, long count) {}
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        try:
            return library.fused_softmax(x)
        except Exception:
            return torch.softmax(x, dim=1)
