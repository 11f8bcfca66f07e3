"""A transpose without a tile: each thread reads one number and writes it to where it belongs."""

import torch
from torch import nn

from kernelbench import jit

module = jit.compile_cuda(r"""
extern "C" __global__ void __launch_bounds__(256) transpose(const float* x, float* y, int rows, int columns) {
    const int column = blockIdx.x * 32 + threadIdx.x;
    const int row = blockIdx.y * 8 + threadIdx.y;
    const long long matrix = (long long)blockIdx.z * rows * columns;
    if (row < rows && column < columns)
        y[matrix + (long long)column * rows + row] = x[matrix + (long long)row * columns + column];
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        batch, rows, columns = x.shape
        y = torch.empty(batch, columns, rows, device=x.device)
        grid = ((columns + 31) // 32, (rows + 7) // 8, batch)
        module.transpose(grid, (32, 8), (x, y, rows, columns))
        return y
