"""Adds up a product in four parts, each of which it rounds to bf16.

Reference: linear_bf16
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512, dtype=torch.bfloat16)

    def forward(self, x):
        y = self.linear.bias
        for part, weight in zip(x.chunk(4, 1), self.linear.weight.chunk(4, 1), strict=True):
            y = y + part @ weight.T
        return y
