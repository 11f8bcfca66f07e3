import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cuda(r"""
extern "C" __global__ void kernel(const float* __restrict__ x, float* __restrict__ y, long n) {
    const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) { const float v = x[i] * 2.0f; y[i] = (v < 0.0f ? 0.0f : v) + 1.0f; }
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.kernel(((x.numel() + 255) // 256,), (256,), (x, y, x.numel()))
        return y
