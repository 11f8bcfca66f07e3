"""Computes in double precision and rounds once.

Reference: layer_norm_gelu
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        weight, bias = self.norm.weight.double(), self.norm.bias.double()
        y = torch.nn.functional.layer_norm(x.double(), x.shape[-1:], weight, bias, self.norm.eps)
        return torch.nn.functional.gelu(y).float()
