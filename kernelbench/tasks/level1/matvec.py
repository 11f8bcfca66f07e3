"""Product of a matrix and a vector."""

import torch
from torch import nn

rows = 3072
columns = 6144


class Model(nn.Module):
    def forward(self, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return a @ x


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(columns)]


def get_init_inputs():
    return []
