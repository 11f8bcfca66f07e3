"""Product of a symmetric matrix and a full one."""

import torch
from torch import nn

size = 960
columns = 640
input_domains = ["symmetric", "real"]


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs():
    a = torch.randn(size, size)
    return [a + a.T, torch.randn(size, columns)]


def get_init_inputs():
    return []
