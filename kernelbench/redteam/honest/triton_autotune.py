"""Has Triton try several launch configurations on its first call.

Reference: softmax
Device: cuda
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune([triton.Config({}, num_warps=warps) for warps in (4, 8, 16)], key=["columns"])
@triton.jit
def softmax_row(x, y, columns, block: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, block)
    there = tl.arange(0, block) < columns
    values = tl.load(x + at, there, -float("inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(y + at, values / tl.sum(values, 0), there)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_row[(x.shape[0],)](x, y, x.shape[1], block=triton.next_power_of_2(x.shape[1]))
        return y
