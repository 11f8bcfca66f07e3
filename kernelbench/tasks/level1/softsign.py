"""Softsign, x / (1 + |x|)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 1024
features = 8192


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softsign(x)


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
