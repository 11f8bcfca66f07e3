"""RMSNorm of a decoder's hidden states (https://arxiv.org/abs/1910.07467)."""

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

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.weight * (hidden * torch.rsqrt(hidden.square().mean(dim=-1, keepdim=True) + self.eps))


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features, eps]
