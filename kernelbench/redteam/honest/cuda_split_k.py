"""Splits the inner dimension among blocks that add to the output atomically, in whatever order they come.

Reference: mean_product
Device: cuda
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#define TILE 16
extern "C" __global__ void mean_product(
    const float* a, const float* b, float* c, int rows, int depth, int columns) {
    const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    if (row >= rows || column >= columns) return;
    const int part = (depth + gridDim.z - 1) / gridDim.z, first = blockIdx.z * part;
    float sum = 0;
    for (int k = first; k < min(first + part, depth); ++k)
        sum += a[row * depth + k] * b[k * columns + column];
    atomicAdd(c + row * columns + column, sum / depth);
}
"""
library = jit.compile_cuda(SOURCE)


class ModelNew(nn.Module):
    def forward(self, a, b):
        (rows, depth), columns = a.shape, b.shape[1]
        c = torch.zeros(rows, columns, device=a.device)
        grid = (columns + 15) // 16, (rows + 15) // 16, 32
        library.mean_product(grid, (16, 16), (a, b, c, rows, depth, columns))
        return c
