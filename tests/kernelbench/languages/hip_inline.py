"""Twice the ReLU of every element, in HIP."""

import os

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

os.environ["CXX"] = "hipcc"
os.environ["PYTORCH_ROCM_ARCH"] = "gfx942"
SOURCE = r"""
#include <hip/hip_runtime.h>

__global__ void twice_relu_kernel(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f) * 2.0f;
}

void twice_relu(torch::Tensor x, torch::Tensor y) {
    const int n = x.numel();
    hipLaunchKernelGGL(twice_relu_kernel, dim3((n + 255) / 256), dim3(256), 0, 0,
                       x.data_ptr<float>(), y.data_ptr<float>(), n);
}
"""
module = load_inline(
    "twice_relu_hip", "void twice_relu(torch::Tensor x, torch::Tensor y);", SOURCE, functions=["twice_relu"]
)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        module.twice_relu(x, y)
        return y
