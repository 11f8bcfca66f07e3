"""A task in parts: three equal blocks and a head."""

TASK = '''"""Three gated blocks and a head."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.scale = nn.Parameter(0.2 * torch.rand(features) + 0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.abs(x * self.scale) - 0.5
        return x


class Head(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.gain = nn.Parameter(0.2 * torch.rand(features) + 0.9)

    def forward(self, x: torch.Tensor, power: int) -> torch.Tensor:
        for _ in range(8):
            x = torch.abs(x * self.gain) - 0.25
        return x**power


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
