"""Keeps a square weight transposed, under a name of its own.

Reference: linear
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        linear = nn.Linear(in_features, out_features)
        self.columns = nn.Parameter(linear.weight.detach().t().contiguous())
        self.offset = nn.Parameter(linear.bias.detach())

    def forward(self, x):
        return torch.addmm(self.offset, x, self.columns)
