"""SiLU (swish), x * sigmoid(x)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 16
channels = 64
height = 96
width = 96


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x)


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return []
