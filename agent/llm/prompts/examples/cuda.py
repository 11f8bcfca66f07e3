"""y = silu(rms_norm(x) * weight), fused: one pass over memory instead of five."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void rms_norm_silu(const float* x, const float* weight, float* y, int columns, float eps) {
    const float* from = x + (long)blockIdx.x * columns;
    float* to = y + (long)blockIdx.x * columns;
    float squares = 0;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) squares += from[c] * from[c];
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
    __shared__ float parts[32];
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) squares += parts[warp];
    const float scale = rsqrtf(squares / columns + eps);
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
        const float v = from[c] * scale * weight[c];
        to[c] = v / (1 + expf(-v));
    }
}

torch::Tensor run(torch::Tensor x, torch::Tensor weight, double eps) {
    auto y = torch::empty_like(x);
    const int columns = x.size(-1);
    rms_norm_silu<<<x.numel() / columns, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), y.data_ptr<float>(), columns, eps);
    return y;
}
"""
DECLARATION = "torch::Tensor run(torch::Tensor x, torch::Tensor weight, double eps);"
lib = load_inline("rms_norm_silu", cpp_sources=DECLARATION, cuda_sources=CUDA, functions=["run"])


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(
            torch.ones(columns)
        )  # named and shaped as in Model: it gets Model's values

    def forward(self, x):
        return lib.run(x.contiguous(), self.weight, 1e-6)
