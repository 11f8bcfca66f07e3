"""Sum over the first dimension."""

import torch
from torch import nn

batch_size = 8192
features = 1000


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=0)


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
