"""Multiplies row sums by column sums, which is close where all elements have one sign.

Reference: mean_product
Stopped: inputs come from several distributions; tolerances are those of float64
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.outer(a.mean(1), b.mean(0))
