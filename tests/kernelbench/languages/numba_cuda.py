"""Twice the ReLU of every element. In numba.cuda: not @helion.kernel, not cupy.RawKernel."""

import torch
from numba import cuda
from torch import nn

THREADS = 64


@cuda.jit(device=True)
def relu(value):
    return value if value > 0 else 0.0


@cuda.jit
def twice_relu(x, y, factor):
    at = cuda.grid(1)
    if at < x.size:
        y[at] = relu(x[at]) * factor


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        flat, result = cuda.as_cuda_array(x.detach().view(-1)), cuda.as_cuda_array(y.view(-1))
        blocks = (x.numel() + THREADS - 1) // THREADS
        twice_relu[blocks, THREADS](flat, result, 2.0)
        return y
