"""Softplus, log(1 + exp(x)), linear above the threshold."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 512
features = 8000


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softplus(x)


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
