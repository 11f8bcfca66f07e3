"""Rotary position embedding of queries and keys (https://arxiv.org/abs/2104.09864), angles given."""

import torch
from torch import nn

batch_size = 8
heads = 8
tokens = 128
head_features = 64
base = 10000.0
workload = [
    {"batch_size": 8, "tokens": 128},
    {"batch_size": 1, "tokens": 77},
    {"batch_size": 3, "tokens": 200, "hidden": True},
]


class Model(nn.Module):
    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-second, first), dim=-1) * sine

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rotate(query, cosine, sine), self.rotate(key, cosine, sine)


def get_inputs():
    frequency = base ** (-torch.arange(0, head_features, 2) / head_features)
    angle = torch.outer(torch.arange(tokens), frequency).repeat(1, 2)
    both = [torch.randn(batch_size, heads, tokens, head_features) for _ in range(2)]
    return [*both, angle.cos(), angle.sin()]


def get_init_inputs():
    return []
