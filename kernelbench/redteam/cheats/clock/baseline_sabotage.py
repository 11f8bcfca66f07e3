"""Slows down torch for everybody else in the process, the baseline above all.

Reference: softmax
Stopped: the baseline has a process of its own, started before the candidate's
Correct: it does compute what it should, and gains nothing
"""

import torch
from torch import nn

true_softmax = torch.softmax


def slow_softmax(x, dim):
    return true_softmax(x.double(), dim).float().clone()


class ModelNew(nn.Module):
    def forward(self, x):
        torch.softmax = slow_softmax
        return true_softmax(x, 1)
