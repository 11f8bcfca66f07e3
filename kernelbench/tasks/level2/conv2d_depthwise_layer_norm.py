"""Depthwise convolution and layer norm over channels (ConvNeXt, https://arxiv.org/abs/2201.03545)."""

import torch
from torch import nn

batch_size = 8
channels = 96
height = 56
width = 56
kernel_size = 7


class Model(nn.Module):
    def __init__(self, channels: int, kernel_size: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size, padding="same", groups=channels)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x).permute(0, 2, 3, 1))


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, kernel_size]
