"""Twice the ReLU of every element, in CUDA C++ that CuPy builds."""

import cupy as cp
import torch
from torch import nn

SOURCE = r"""
extern "C" __global__ void twice_relu(const float* x, float* y, const int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 0.0f ? 2.0f * x[i] : 0.0f;
}
"""
twice_relu = cp.RawKernel(SOURCE, "twice_relu")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        arguments = (cp.from_dlpack(x.detach()), cp.from_dlpack(y), cp.int32(n))
        twice_relu(((n + 255) // 256,), (256,), arguments)
        return y
