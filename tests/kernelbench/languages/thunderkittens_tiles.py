"""Twice the ReLU of every element, in ThunderKittens."""

import os

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include "kittens.cuh"
#include <ATen/cuda/CUDAContext.h>
using namespace kittens;

struct globals {
    using layout = gl<float, -1, -1, -1, -1, st_fl<16, 32>>;
    layout x, y;
};

__global__ __launch_bounds__(WARP_THREADS) void twice_relu_kernel(const __grid_constant__ globals g) {
    rt_fl<16, 32> tile;
    load(tile, g.x, {0, 0, blockIdx.y, blockIdx.x});
    relu(tile, tile);
    mul(tile, tile, 2.0f);
    store(g.y, tile, {0, 0, blockIdx.y, blockIdx.x});
}

void twice_relu(torch::Tensor x, torch::Tensor y) {
    const unsigned long rows = x.size(0), columns = x.size(1);
    globals g{{x.data_ptr<float>(), 1, 1, rows, columns}, {y.data_ptr<float>(), 1, 1, rows, columns}};
    twice_relu_kernel<<<dim3(columns / 32, rows / 16), WARP_THREADS>>>(g);
}
"""
ROOT = os.environ.get("THUNDERKITTENS_ROOT", "")
module = load_inline(
    "twice_relu_tk",
    "void twice_relu(torch::Tensor x, torch::Tensor y);",
    SOURCE,
    functions=["twice_relu"],
    extra_include_paths=[f"{ROOT}/include"],
    extra_cuda_cflags=["-std=c++20", "-DKITTENS_HOPPER"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        module.twice_relu(x, y)
        return y
