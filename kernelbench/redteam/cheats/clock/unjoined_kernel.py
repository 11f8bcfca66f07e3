"""Launches its kernel on a stream that the caller's never waits for.

Reference: softmax
Device: cuda
Stopped: a block ends when nothing runs on the device any more, on whichever stream
Correct: then it has done its work, and has taken long
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

extern "C" __global__ void softmax_late(const float* x, float* y, int columns, int rounds) {
    for (int round = 0; round < rounds; ++round) __threadfence();  // for about a millisecond
    softmax_row(x + blockIdx.x * (long)columns, y + blockIdx.x * (long)columns, columns);
}
"""
library = jit.compile_cuda(SOURCE)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = None

    def forward(self, x):
        if self.side is None:
            self.side = torch.cuda.Stream()
        y = torch.empty_like(x)
        with torch.cuda.stream(self.side):
            library.softmax_late((x.shape[0],), (256,), (x, y, x.shape[1], 1000))
        return y
