"""Product of an upper triangular matrix and a full one."""

import torch
from torch import nn

size = 1024
columns = 768
input_domains = ["upper_triangular", "real"]


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs():
    return [torch.randn(size, size).triu(), torch.randn(size, columns)]


def get_init_inputs():
    return []
