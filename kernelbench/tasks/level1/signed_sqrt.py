"""Signed square root, sign(x) * sqrt(|x|)."""

import torch
from torch import nn

batch_size = 512
features = 8192


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x) * torch.sqrt(torch.abs(x))


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
