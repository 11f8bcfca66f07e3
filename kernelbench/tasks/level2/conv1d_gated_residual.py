"""Dilated convolution with the tanh-sigmoid gate and residual of WaveNet (https://arxiv.org/abs/1609.03499)."""

import torch
from torch import nn

batch_size = 8
channels = 64
length = 4096
kernel_size = 3
dilation = 4


class Model(nn.Module):
    def __init__(self, channels: int, kernel_size: int, dilation: int):
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size, padding="same", dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        signal, gate = self.conv(x).chunk(2, dim=1)
        return x + torch.tanh(signal) * torch.sigmoid(gate)


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, kernel_size, dilation]
