"""Replays a graph of its Triton kernel: each input is copied in, each output is copied out.

Reference: softmax
Device: cuda
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_row(x, y, columns, block: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, block)
    there = tl.arange(0, block) < columns
    values = tl.load(x + at, there, -float("inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(y + at, values / tl.sum(values, 0), there)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def compute(self):
        block = triton.next_power_of_2(self.input.shape[1])
        softmax_row[(self.input.shape[0],)](self.input, self.output, self.input.shape[1], block=block)

    def forward(self, x):
        if self.graph is None:
            self.input, self.output = x.clone(), torch.empty_like(x)
            self.compute()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.compute()
        self.input.copy_(x)
        self.graph.replay()
        return self.output.clone()
