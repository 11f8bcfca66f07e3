"""Mean over the middle dimension."""

import torch
from torch import nn

batch_size = 64
tokens = 384
features = 512


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return []
