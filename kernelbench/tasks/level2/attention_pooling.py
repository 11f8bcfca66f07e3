"""Sequences pooled into one vector by learned softmax weights."""

import torch
from torch import nn

batch_size = 32
tokens = 512
features = 384


class Model(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.score = nn.Parameter(torch.randn(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalized = self.norm(x)
        weight = torch.softmax((normalized * self.score).sum(dim=-1, keepdim=True) / 8, dim=1)
        return (weight * normalized).sum(dim=1)


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features]
