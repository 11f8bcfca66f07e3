"""Convolution, batch normalization by the batch itself and ReLU6."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
in_channels = 32
out_channels = 64
height = 56
width = 56
kernel_size = 3


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu6(self.norm(self.conv(x)))


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
