"""Causal grouped-query attention with rotary position embedding (https://arxiv.org/abs/2104.09864)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 4
tokens = 256
features = 384
heads = 6
key_heads = 2
base = 10000.0


class Model(nn.Module):
    def __init__(self, tokens: int, features: int, heads: int, key_heads: int, base: float):
        super().__init__()
        self.head_features = features // heads
        self.queries_per_key = heads // key_heads
        self.query = nn.Linear(features, features, bias=False)
        self.key = nn.Linear(features, key_heads * self.head_features, bias=False)
        self.value = nn.Linear(features, key_heads * self.head_features, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        frequency = base ** (-torch.arange(0, self.head_features, 2) / self.head_features)
        angle = torch.outer(torch.arange(tokens), frequency)
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_features)).transpose(1, 2)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        even, odd = x[..., 0::2], x[..., 1::2]
        rotated = (even * self.cosine - odd * self.sine, even * self.sine + odd * self.cosine)
        return torch.stack(rotated, dim=-1).flatten(-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.rotate(self.split_heads(self.query(x)))
        key = self.rotate(self.split_heads(self.key(x))).repeat_interleave(self.queries_per_key, dim=1)
        value = self.split_heads(self.value(x)).repeat_interleave(self.queries_per_key, dim=1)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [tokens, features, heads, key_heads, base]
