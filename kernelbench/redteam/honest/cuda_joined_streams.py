"""Launches its kernel for two halves on two streams, and joins them before it returns.

Reference: softmax
Device: cuda
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#define THREADS 256
__device__ float over_block(float value, bool sum) {
    __shared__ float held[THREADS];
    held[threadIdx.x] = value;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            const float a = held[threadIdx.x], b = held[threadIdx.x + half];
            held[threadIdx.x] = sum ? a + b : fmaxf(a, b);
        }
        __syncthreads();
    }
    const float all = held[0];
    __syncthreads();
    return all;
}

__device__ void softmax_row(const float* x, float* y, int columns) {
    float most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < columns; i += THREADS) most = fmaxf(most, x[i]);
    most = over_block(most, false);
    for (int i = threadIdx.x; i < columns; i += THREADS) sum += expf(x[i] - most);
    sum = over_block(sum, true);
    for (int i = threadIdx.x; i < columns; i += THREADS) y[i] = expf(x[i] - most) / sum;
}

extern "C" __global__ void softmax(const float* x, float* y, int columns) {
    softmax_row(x + blockIdx.x * (long)columns, y + blockIdx.x * (long)columns, columns);
}
"""
library = jit.compile_cuda(SOURCE)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.streams = None

    def forward(self, x):
        if self.streams is None:
            self.streams = [torch.cuda.Stream() for _ in range(2)]
        here, y = torch.cuda.current_stream(), torch.empty_like(x)
        for stream, rows, results in zip(self.streams, x.chunk(2), y.chunk(2), strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                library.softmax((rows.shape[0],), (256,), (rows, results, x.shape[1]))
        for stream in self.streams:
            here.wait_stream(stream)
        return y
