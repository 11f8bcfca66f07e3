"""Average pooling of sequences, a sliding mean with stride one."""

import torch
from torch import nn

batch_size = 32
channels = 64
length = 2048
kernel_size = 7
stride = 1
padding = 3


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.pool = nn.AvgPool1d(kernel_size, stride, padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [kernel_size, stride, padding]
