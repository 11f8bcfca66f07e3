"""Causal depthwise convolution of sequences, the short convolution of Mamba blocks."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
channels = 512
length = 1024
kernel_size = 4


class Model(nn.Module):
    def __init__(self, channels: int, kernel_size: int):
        super().__init__()
        self.left_padding = kernel_size - 1
        self.conv = nn.Conv1d(channels, channels, kernel_size, groups=channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(F.pad(x, (self.left_padding, 0)))


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, kernel_size]
