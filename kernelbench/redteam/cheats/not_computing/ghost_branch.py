"""Has a kernel for a shape that never comes; all others go to torch.

Reference: softmax
Stopped: it is timed at what it truly takes, and its share of own kernels is reported
Correct: it does compute what it should, and gains nothing
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
extern "C" void softmax(float* y) { y[0] = 1.0f; }
"""
library = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        if x.numel() == 1:
            y = torch.empty_like(x)
            library.softmax(y)
            return y
        return torch.softmax(x, dim=1)
