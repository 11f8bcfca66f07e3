"""Convolution, hard swish and average pooling."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
in_channels = 16
out_channels = 64
height = 80
width = 80
kernel_size = 3
pool_size = 2


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, pool_size: int):
        super().__init__()
        self.pool_size = pool_size
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.hardswish(self.conv(x)), self.pool_size)


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, pool_size]
