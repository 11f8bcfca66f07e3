"""Transposed convolution, a per-channel scale and a clamp."""

import torch
from torch import nn

batch_size = 8
in_channels = 32
out_channels = 24
height = 48
width = 48
kernel_size = 3
limit = 0.5


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, limit: float):
        super().__init__()
        self.limit = limit
        self.conv = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=2, padding=1, output_padding=1
        )
        self.scale = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(self.conv(x) * self.scale, -self.limit, self.limit)


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, limit]
