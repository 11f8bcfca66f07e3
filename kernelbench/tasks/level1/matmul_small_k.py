"""Product with a short inner dimension and a large result."""

import torch
from torch import nn

rows = 3072
inner = 32
columns = 2560


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs():
    return [torch.randn(rows, inner), torch.randn(inner, columns)]


def get_init_inputs():
    return []
