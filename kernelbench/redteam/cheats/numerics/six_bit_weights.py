"""Multiplies by weights of six bits, which move a bf16 result by a few ulps.

Reference: linear_bf16
Stopped: budgets in bf16 have room for a few roundings, not for eight ulps
"""

import torch
from torch import nn


def six_bits(weight):
    groups = weight.float().view(weight.shape[0], -1, 64)
    scale = groups.abs().amax(-1, keepdim=True) / 31
    return ((groups / scale).round() * scale).view(weight.shape)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512, dtype=torch.bfloat16)

    def forward(self, x):
        weight, bias = six_bits(self.linear.weight), self.linear.bias.float()
        return nn.functional.linear(x.float(), weight, bias).bfloat16()
