"""Tall-skinny product: very many rows, few columns on both sides."""

import torch
from torch import nn

rows = 98304
inner = 64
columns = 48


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs():
    return [torch.randn(rows, inner), torch.randn(inner, columns)]


def get_init_inputs():
    return []
