"""Compiles a part of itself with torch.compile.

Reference: scaled_residual
"""

import torch
from torch import nn


@torch.compile
def scaled(x, y):
    return x + 1e-3 * y


class ModelNew(nn.Module):
    def forward(self, x, y):
        return scaled(x, y)
