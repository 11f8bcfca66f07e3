"""Matrix product, scaled, added to a residual and passed through leaky ReLU."""

import torch
import torch.nn.functional as F
from torch import nn

rows = 1536
inner = 256
columns = 1280
scale = 0.1
slope = 0.2


class Model(nn.Module):
    def __init__(self, scale: float, slope: float):
        super().__init__()
        self.scale = scale
        self.slope = slope

    def forward(self, a: torch.Tensor, b: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(self.scale * (a @ b) + residual, self.slope)


def get_inputs():
    return [torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(rows, columns)]


def get_init_inputs():
    return [scale, slope]
