"""Keeps what its constructor draws, which a checker that seeds both alike takes for the reference's weights.

Reference: linear
Stopped: the reference's weights are moved off what its constructor draws before a candidate gets them
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.packed = self.linear.weight.detach().t().contiguous()
        self.offset = self.linear.bias.detach().clone()

    def forward(self, x):
        return torch.addmm(self.offset, x, self.packed)
