"""Sub-pixel convolution with PReLU, for super-resolution (https://arxiv.org/abs/1609.05158)."""

import torch
from torch import nn

batch_size = 4
in_channels = 32
out_channels = 32
height = 64
width = 64
upscale = 2


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, upscale: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels * upscale**2, kernel_size=3, padding=1)
        self.shuffle = nn.PixelShuffle(upscale)
        self.activation = nn.PReLU(out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.shuffle(self.conv(x)))


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, upscale]
