"""Hard swish, x * relu6(x + 3) / 6."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 32
channels = 40
height = 80
width = 80


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(x)


def get_inputs():
    return [3 * torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return []
