"""Causal softmax of attention scores capped by tanh, as in Gemma 2 (https://arxiv.org/abs/2408.00118)."""

import torch
from torch import nn

batch_size = 4
heads = 8
tokens = 384
cap = 5.0


class Model(nn.Module):
    def __init__(self, tokens: int, cap: float):
        super().__init__()
        self.cap = cap
        self.register_buffer("future", torch.ones(tokens, tokens, dtype=torch.bool).triu(1))

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        capped = self.cap * torch.tanh(scores / self.cap)
        return torch.softmax(capped.masked_fill(self.future, -torch.inf), dim=-1)


def get_inputs():
    return [3 * torch.randn(batch_size, heads, tokens, tokens)]


def get_init_inputs():
    return [tokens, cap]
