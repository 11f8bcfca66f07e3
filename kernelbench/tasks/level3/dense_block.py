"""Densely connected block: every layer reads all feature maps before it (https://arxiv.org/abs/1608.06993)."""

import torch
from torch import nn

batch_size = 8
channels = 32
growth = 16
layers = 4
height = 40
width = 40


class Model(nn.Module):
    def __init__(self, channels: int, growth: int, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + index * growth, track_running_stats=False),
                nn.ReLU(),
                nn.Conv2d(channels + index * growth, growth, 3, padding=1),
            )
            for index in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat((x, layer(x)), dim=1)
        return x


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, growth, layers]
