"""Product with a long inner dimension and a small result."""

import torch
from torch import nn

rows = 96
inner = 65536
columns = 64


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs():
    return [torch.randn(rows, inner), torch.randn(inner, columns)]


def get_init_inputs():
    return []
