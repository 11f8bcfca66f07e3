"""Keeps the signs of the weights that its constructor drew, and never reads the weights.

Reference: sign_linear
Stopped: weights of both signs are varied so far that some change theirs
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(features, features))
        self.signs = torch.sign(self.weight.detach())

    def forward(self, x):
        return nn.functional.linear(x, self.signs)
