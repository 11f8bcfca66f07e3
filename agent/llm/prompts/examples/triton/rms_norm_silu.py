"""silu(rms_norm(x) * weight): one program a row, which it keeps in registers; one pass over memory."""

import torch
import triton
import triton.language as tl
from torch import nn

WIDEST = 16384  # columns of a row in registers: 16 a thread with 32 warps


@triton.jit
def activated(value, scale, weight, at, inside):
    value = value * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    return value * tl.sigmoid(value)


@triton.jit
def rms_norm_silu(x, weight, y, columns, eps, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns  # int64: tensors may have more than 2^31 elements
    x += row
    y += row
    if WHOLE:  # the row fits: a branch on a constexpr is taken by the compiler, not by the kernel
        at = tl.arange(0, BLOCK)  # neighbouring threads read neighbouring elements, 16 bytes each
        inside = at < columns  # BLOCK is a power of two; `other` is the neutral element of the sum
        # Whatever the storage, compute in float32: sums of bf16 squares would keep 8 bits only.
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
        tl.store(y + at, activated(value, scale, weight, at, inside), mask=inside)  # rounds to y's type
    else:  # it would spill: sums first, then the row once more, from the L2 cache
        squares = tl.zeros((BLOCK,), tl.float32)  # one for each lane; added up once, after the loop
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            value = tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
            squares += value * value
        scale = tl.rsqrt(tl.sum(squares, axis=0) / columns + eps)
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < columns
            # Read for the last time, so it should be the first to leave the cache.
            value = tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            tl.store(y + at, activated(value, scale, weight, at, inside), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))  # named and shaped as Model's: gets its values

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        whole = columns <= WIDEST
        block = triton.next_power_of_2(columns) if whole else 8192
        # 16 elements a thread: several 16-byte loads in flight, and few steps in the reduction across warps.
        # A program of 32 warps for a row of 256 would mostly wait for itself.
        warps = min(max(block // 512, 1), 32)
        grid = (x.numel() // columns,)
        rms_norm_silu[grid](x, self.weight, y, columns, 1e-6, BLOCK=block, WHOLE=whole, num_warps=warps)
        return y
