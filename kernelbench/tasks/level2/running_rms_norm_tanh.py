"""Sequences divided by the running root mean square of their past, then squashed by tanh."""

import torch
from torch import nn

batch_size = 1024
length = 3072
eps = 1e-3


class Model(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        mean_square = torch.cumsum(x.square(), dim=-1) / count
        return torch.tanh(x * torch.rsqrt(mean_square + self.eps))


def get_inputs():
    return [torch.randn(batch_size, length)]


def get_init_inputs():
    return [eps]
