"""Scales within the matrix product, where it costs nothing, instead of after it.

Reference: mean_product
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = a.new_empty(a.shape[0], b.shape[1])
        return torch.addmm(c, a, b, beta=0, alpha=1 / a.shape[1])
