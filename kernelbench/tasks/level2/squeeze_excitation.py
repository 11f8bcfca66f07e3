"""Squeeze-and-excitation: channels re-weighted by what their means say (https://arxiv.org/abs/1709.01507)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 16
channels = 96
squeezed_channels = 24
height = 64
width = 64


class Model(nn.Module):
    def __init__(self, channels: int, squeezed_channels: int):
        super().__init__()
        self.squeeze = nn.Linear(channels, squeezed_channels)
        self.excite = nn.Linear(squeezed_channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squeezed = F.silu(self.squeeze(x.mean(dim=(2, 3))))
        return x * torch.sigmoid(self.excite(squeezed))[:, :, None, None]


def get_inputs():
    return [torch.randn(batch_size, channels, height, width) + torch.randn(batch_size, channels, 1, 1)]


def get_init_inputs():
    return [channels, squeezed_channels]
