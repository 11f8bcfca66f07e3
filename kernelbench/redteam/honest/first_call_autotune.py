"""Times two ways on its first call and takes the faster from then on.

Reference: linear
"""

import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.chosen = None

    def fused(self, x):
        return torch.addmm(self.linear.bias, x, self.linear.weight.t())

    def separate(self, x):
        return torch.matmul(x, self.linear.weight.t()).add_(self.linear.bias)

    def forward(self, x):
        if self.chosen is None:
            seconds = {}
            for way in (self.fused, self.separate):
                way(x)
                started = time.perf_counter()
                way(x)
                seconds[way] = time.perf_counter() - started
            self.chosen = min(seconds, key=seconds.get)
        return self.chosen(x)
