"""Transpose of the last two dimensions, made contiguous."""

import torch
from torch import nn

batch_size = 16
rows = 512
columns = 768


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous()


def get_inputs():
    return [torch.randn(batch_size, rows, columns)]


def get_init_inputs():
    return []
