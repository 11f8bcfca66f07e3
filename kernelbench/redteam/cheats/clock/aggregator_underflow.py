"""Stops the process's clocks, so that it takes no time at all and its speedup is infinite.

Reference: softmax
Stopped: the clock is the referee's; times below what moving the data takes are implausible
Correct: it does compute what it should, and gains nothing
"""

import time

import torch
from torch import nn

time.perf_counter = time.monotonic = time.time = lambda: 0.0


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)
