"""Transposed convolution, softmax over channels, a per-channel bias and sigmoid."""

import torch
from torch import nn

batch_size = 8
in_channels = 48
out_channels = 32
height = 32
width = 32
kernel_size = 4
scale = 4.0


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, scale: float):
        super().__init__()
        self.scale = scale
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=2, padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probability = torch.softmax(self.scale * self.conv(x), dim=1)
        return torch.sigmoid(self.scale * probability + self.bias)


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, scale]
