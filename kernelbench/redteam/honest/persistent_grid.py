"""Launches as many blocks as the chip has multiprocessors, each of which goes on to further rows.

Reference: row_mean
Device: cuda
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#define THREADS 256
extern "C" __global__ void row_mean(const float* x, float* y, int rows, int columns) {
    __shared__ float sums[THREADS];
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        float sum = 0;
        for (int i = threadIdx.x; i < columns; i += THREADS) sum += x[row * (long)columns + i];
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0) y[row] = sums[0] / columns;
        __syncthreads();
    }
}
"""
library = jit.compile_cuda(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        y = torch.empty(rows, device=x.device)
        blocks = torch.cuda.get_device_properties(x.device).multi_processor_count
        library.row_mean((min(rows, blocks),), (256,), (x, y, rows, columns))
        return y
