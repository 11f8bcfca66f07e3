"""Leaves out the products that are zero because both matrices are lower triangular.

Reference: triangular_product
"""

import torch
from torch import nn

BLOCK = 128


class ModelNew(nn.Module):
    def forward(self, a, b):
        size = a.shape[0]
        c = a.new_zeros(size, size)
        for top in range(0, size, BLOCK):
            rows = slice(top, top + BLOCK)
            c[rows, : top + BLOCK] = a[rows, : top + BLOCK] @ b[: top + BLOCK, : top + BLOCK]
        return torch.tril(c)
