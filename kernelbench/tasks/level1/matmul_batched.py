"""Products of a batch of matrix pairs."""

import torch
from torch import nn

batch_size = 64
rows = 192
inner = 160
columns = 256


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(batch_size, rows, inner), torch.randn(batch_size, inner, columns)]


def get_init_inputs():
    return []
