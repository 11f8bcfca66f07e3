"""A softmax whose exp knows no argument below -87.3, as many vector libraries have it.

Reference: softmax
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        powers = torch.exp((x - x.amax(-1, keepdim=True)).clamp(min=-87.3))
        return powers / powers.sum(-1, keepdim=True)
