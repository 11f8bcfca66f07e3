"""Average pooling of volumes."""

import torch
from torch import nn

batch_size = 4
channels = 32
depth = 32
height = 48
width = 48
kernel_size = 2


class Model(nn.Module):
    def __init__(self, kernel_size: int):
        super().__init__()
        self.pool = nn.AvgPool3d(kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(batch_size, channels, depth, height, width)]


def get_init_inputs():
    return [kernel_size]
