"""Ranks from the end, so that of equal values the last comes first.

Reference: top_values
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = torch.sort(x.flip(-1), dim=-1, descending=True, stable=True)
        return values[:, :64], x.shape[-1] - 1 - places[:, :64]
