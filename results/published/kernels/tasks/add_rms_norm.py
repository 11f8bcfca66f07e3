"""Residual sum and its RMSNorm, both returned."""

import torch
from torch import nn

batch_size = 8
tokens = 128
features = 256
eps = 1e-5
workload = [
    {"batch_size": 8, "tokens": 128},
    {"batch_size": 1, "tokens": 77},
    {"batch_size": 3, "tokens": 200, "hidden": True},
]


class Model(nn.Module):
    def __init__(self, features: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = hidden + residual
        scale = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * (total * scale), total


def get_inputs():
    return [torch.randn(batch_size, tokens, features) for _ in range(2)]


def get_init_inputs():
    return [features, eps]
