"""One level of a U-Net: encoder, bottleneck, decoder and skip connection (https://arxiv.org/abs/1505.04597)."""

import torch
from torch import nn

batch_size = 4
in_channels = 8
channels = 24
groups = 4
height = 64
width = 64


def double_conv(in_channels: int, out_channels: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1),
        nn.GroupNorm(groups, out_channels),
        nn.ReLU(),
        nn.Conv2d(out_channels, out_channels, 3, padding=1),
        nn.GroupNorm(groups, out_channels),
        nn.ReLU(),
    )


class Model(nn.Module):
    def __init__(self, in_channels: int, channels: int, groups: int):
        super().__init__()
        self.encoder = double_conv(in_channels, channels, groups)
        self.down = nn.MaxPool2d(2)
        self.bottleneck = double_conv(channels, 2 * channels, groups)
        self.up = nn.ConvTranspose2d(2 * channels, channels, kernel_size=2, stride=2)
        self.decoder = double_conv(2 * channels, channels, groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.encoder(x)
        upsampled = self.up(self.bottleneck(self.down(skip)))
        return self.decoder(torch.cat((skip, upsampled), dim=1))


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, channels, groups]
