"""Product of two lower triangular matrices, itself lower triangular."""

import torch
from torch import nn

size = 1024
input_domains = ["lower_triangular", "lower_triangular"]


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tril(a @ b)


def get_inputs():
    return [torch.randn(size, size).tril(), torch.randn(size, size).tril()]


def get_init_inputs():
    return []
