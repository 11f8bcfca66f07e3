"""Log-softmax over the channels of images, (N, C, H, W), with a bias for each channel and a temperature."""

import torch
from torch import nn

batch = 8
channels = 96
size = 128
temperature = 1.5


class Model(nn.Module):
    def __init__(self, channels: int, temperature: float):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels, 1, 1))
        self.temperature = temperature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax((x + self.bias) / self.temperature, dim=1)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels, temperature]
