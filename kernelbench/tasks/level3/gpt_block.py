"""Pre-norm transformer decoder block of GPT-2: causal attention, then an MLP with tanh GELU."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 4
tokens = 128
features = 256
heads = 8


class Model(nn.Module):
    def __init__(self, tokens: int, features: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(features)
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.attention_out = nn.Linear(features, features)
        self.mlp_norm = nn.LayerNorm(features)
        self.mlp_in = nn.Linear(features, 4 * features)
        self.mlp_out = nn.Linear(4 * features, features)
        self.register_buffer("future", torch.ones(tokens, tokens, dtype=torch.bool).triu(1))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        weights = torch.softmax(scores.masked_fill(self.future, -torch.inf), dim=-1)
        return self.attention_out((weights @ value).transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh"))


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [tokens, features, heads]
