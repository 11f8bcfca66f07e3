"""Multiplies matrices of single precision in TF32, as Triton's dot does unless it is told otherwise.

Reference: matmul
Device: cuda
Stopped: tolerances are those of the declared precision against float64
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def product(a, b, c, rows, depth, columns, tile: tl.constexpr):
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    sums = tl.zeros((tile, tile), tl.float32)
    for first in range(0, depth, tile):
        k = first + tl.arange(0, tile)
        there = (row[:, None] < rows) & (k[None, :] < depth)
        left = tl.load(a + row[:, None] * depth + k[None, :], there, 0.0)
        there = (k[:, None] < depth) & (column[None, :] < columns)
        right = tl.load(b + k[:, None] * columns + column[None, :], there, 0.0)
        sums += tl.dot(left, right, input_precision="tf32")
    there = (row[:, None] < rows) & (column[None, :] < columns)
    tl.store(c + row[:, None] * columns + column[None, :], sums, there)


class ModelNew(nn.Module):
    def forward(self, a, b):
        (rows, depth), columns = a.shape, b.shape[1]
        c = torch.empty(rows, columns, device=a.device)
        product[(triton.cdiv(rows, 32), triton.cdiv(columns, 32))](a, b, c, rows, depth, columns, tile=32)
        return c
