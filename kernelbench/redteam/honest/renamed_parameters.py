"""Has the reference's weights under names of its own.

Reference: gated_linear
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.w1 = nn.Linear(features, features)
        self.w3 = nn.Linear(features, features)

    def forward(self, x):
        gate = self.w1(x)
        return gate * torch.sigmoid(gate) * self.w3(x)
