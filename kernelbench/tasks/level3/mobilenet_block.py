"""Inverted residual block around a depthwise convolution (https://arxiv.org/abs/1801.04381)."""

import torch
from torch import nn

batch_size = 8
channels = 24
expansion = 6
height = 48
width = 48


class Model(nn.Module):
    def __init__(self, channels: int, expansion: int):
        super().__init__()
        hidden_channels = channels * expansion
        self.layers = nn.Sequential(
            nn.Conv2d(channels, hidden_channels, 1, bias=False),
            nn.BatchNorm2d(hidden_channels, track_running_stats=False),
            nn.ReLU6(),
            nn.Conv2d(hidden_channels, hidden_channels, 3, padding=1, groups=hidden_channels, bias=False),
            nn.BatchNorm2d(hidden_channels, track_running_stats=False),
            nn.ReLU6(),
            nn.Conv2d(hidden_channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels, track_running_stats=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, expansion]
