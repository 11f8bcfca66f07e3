"""Max pooling of volumes."""

import torch
from torch import nn

batch_size = 4
channels = 32
depth = 32
height = 40
width = 40
kernel_size = 3
stride = 2


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int):
        super().__init__()
        self.pool = nn.MaxPool3d(kernel_size, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(batch_size, channels, depth, height, width)]


def get_init_inputs():
    return [kernel_size, stride]
