"""A task in parts: three equal blocks and a head."""

TASK = '''"""Three gated blocks and a head."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.scale
        return torch.sigmoid(y) * y + torch.tanh(y) * torch.exp(-y * y)


class Head(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x: torch.Tensor, power: int) -> torch.Tensor:
        y = torch.exp(-((x * self.gain) ** power)) + torch.sin(x) * torch.cos(x) + torch.atan(x)
        return F.silu(y) / (1 + y * y)


class Model(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.blocks = nn.ModuleList(Block(features) for _ in range(3))
        self.head = Head(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x, power=2)


def get_inputs():
    return [torch.randn(256, 256)]


def get_init_inputs():
    return [256]
'''
