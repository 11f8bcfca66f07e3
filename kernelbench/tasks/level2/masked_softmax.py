"""Scaled attention scores, masked and normalized by softmax."""

import torch
from torch import nn

batch_size = 4
heads = 8
queries = 384
keys = 384
scale = 0.125
input_domains = ["real", "mask"]


class Model(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        lowest = torch.finfo(scores.dtype).min
        return torch.softmax((scores * self.scale).masked_fill(~mask, lowest), dim=-1)


def get_inputs():
    scores = 16 * torch.randn(batch_size, heads, queries, keys)
    return [scores, torch.rand(batch_size, 1, queries, keys) < 0.75]


def get_init_inputs():
    return [scale]
