"""Keeps a transposed copy of its weight, and makes it again when the weight changes.

Reference: linear
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.packed_version = None

    def forward(self, x):
        weight = self.linear.weight
        version = weight.data_ptr(), weight._version
        if self.packed_version != version:
            self.packed = weight.t().contiguous()
            self.packed_version = version
        return torch.addmm(self.linear.bias, x, self.packed)
