"""Sums the valid steps as a product with a mask of fractions, made of the lengths.

Reference: mean_of_valid
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, lengths):
        steps = torch.arange(x.shape[1], device=x.device, dtype=lengths.dtype)
        shares = (steps < lengths[:, None]).to(x.dtype) * lengths.to(x.dtype).reciprocal()[:, None]
        return torch.bmm(shares[:, None], x).squeeze(1)
