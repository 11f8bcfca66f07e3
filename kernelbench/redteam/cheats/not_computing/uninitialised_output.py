"""Leaves half of its output unwritten once memory holds what an earlier call has left there.

Reference: softmax
Stopped: every call has inputs of its own; memory that outputs may get is poisoned before every block
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = {}

    def forward(self, x):
        output = self.memory.setdefault(x.shape, torch.empty_like(x))
        written = x.shape[0] // 2 if hasattr(self, "warm") and x.shape in self.warm else x.shape[0]
        self.warm = {*getattr(self, "warm", ()), x.shape}
        output[:written] = torch.softmax(x[:written], dim=1)
        return output
