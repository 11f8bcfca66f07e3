"""Mish, x * tanh(softplus(x))."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
channels = 96
height = 80
width = 80


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mish(x)


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return []
