"""y = silu(rms_norm(x) * weight), fused: one pass over memory instead of five."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rms_norm_silu(x, weight, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / columns + eps)
    value = value * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row + at, value * tl.sigmoid(value), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(
            torch.ones(columns)
        )  # named and shaped as in Model: it gets Model's values

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        block = triton.next_power_of_2(columns)
        rms_norm_silu[(x.numel() // columns,)](x, self.weight, y, columns, 1e-6, BLOCK=block, num_warps=8)
        return y
