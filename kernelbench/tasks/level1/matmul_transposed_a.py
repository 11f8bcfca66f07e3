"""Product with the left matrix stored transposed."""

import torch
from torch import nn

rows = 768
inner = 1024
columns = 640


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.T @ b


def get_inputs():
    return [torch.randn(inner, rows), torch.randn(inner, columns)]


def get_init_inputs():
    return []
