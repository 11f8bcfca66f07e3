"""Causal self-attention with linear position biases (https://arxiv.org/abs/2108.12409)."""

import torch
from torch import nn

batch_size = 4
tokens = 256
features = 256
heads = 8


class Model(nn.Module):
    def __init__(self, tokens: int, features: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        slope = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
        position = torch.arange(tokens)
        distance = position[:, None] - position[None, :]
        bias = -slope[:, None, None] * distance
        self.register_buffer("bias", bias.masked_fill(distance < 0, -torch.inf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + self.bias
        return self.out((torch.softmax(scores, dim=-1) @ value).transpose(1, 2).flatten(2))


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [tokens, features, heads]
