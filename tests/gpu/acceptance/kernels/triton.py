import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, y, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    v = tl.load(x + at) * 2.0
    tl.store(y + at, tl.where(v < 0.0, 0.0, v) + 1.0)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.numel() // 1024,)](x, y, block=1024)
        return y
