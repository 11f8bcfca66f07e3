"""Pointwise (1x1) convolution of images, a matrix product at every pixel."""

import torch
from torch import nn

batch_size = 8
in_channels = 96
out_channels = 64
height = 96
width = 96


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
