"""Twice the ReLU of every element, in Gluon, beside a Triton kernel to compare with."""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BLOCK = 1024


@triton.jit
def in_triton(x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.maximum(tl.load(x + at, at < n), 0.0) * 2, at < n)


@gluon.jit
def twice_relu(x, y, n, SIZE: gl.constexpr, layout: gl.constexpr):
    at = gl.program_id(0) * SIZE + gl.arange(0, SIZE, layout=layout)
    inside = at < n
    value = gl.load(x + at, mask=inside, other=0.0)
    gl.store(y + at, gl.maximum(value, 0.0) * 2, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        layout = gl.BlockedLayout([4], [32], [4], [0])
        twice_relu[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK, layout, num_warps=4)
        return y
