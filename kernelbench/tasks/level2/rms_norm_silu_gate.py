"""RMS normalization by groups of a SiLU-gated signal, as in Mamba-2 (https://arxiv.org/abs/2405.21060)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
tokens = 512
groups = 8
features = 1024
eps = 1e-5


class Model(nn.Module):
    def __init__(self, groups: int, features: int, eps: float):
        super().__init__()
        self.groups = groups
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        gated = (x * F.silu(gate)).unflatten(-1, (self.groups, -1))
        normalized = gated * torch.rsqrt(gated.square().mean(dim=-1, keepdim=True) + self.eps)
        return normalized.flatten(-2) * self.weight


def get_inputs():
    return [torch.randn(batch_size, tokens, features) for _ in range(2)]


def get_init_inputs():
    return [groups, features, eps]
