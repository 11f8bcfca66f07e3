"""Unsharp masking: an image plus its difference from a local mean, clamped to the pixel range."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 10
channels = 3
height = 256
width = 256
radius = 2
amount = 1.5
input_domains = ["unit"]


class Model(nn.Module):
    def __init__(self, radius: int, amount: float):
        super().__init__()
        self.radius = radius
        self.amount = amount

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        blurred = F.avg_pool2d(image, 2 * self.radius + 1, stride=1, padding=self.radius)
        return torch.clamp(image + self.amount * (image - blurred), 0, 1)


def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]


def get_init_inputs():
    return [radius, amount]
