"""Rotary position embedding of queries and keys (https://arxiv.org/abs/2104.09864)."""

import torch
from torch import nn

batch_size = 4
heads = 16
tokens = 512
head_features = 64
base = 10000.0


class Model(nn.Module):
    def __init__(self, tokens: int, head_features: int, base: float):
        super().__init__()
        frequency = base ** (-torch.arange(0, head_features, 2) / head_features)
        angle = torch.outer(torch.arange(tokens), frequency).repeat(1, 2)
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * self.cosine + torch.cat((-second, first), dim=-1) * self.sine

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rotate(query), self.rotate(key)


def get_inputs():
    return [torch.randn(batch_size, heads, tokens, head_features) for _ in range(2)]


def get_init_inputs():
    return [tokens, head_features, base]
