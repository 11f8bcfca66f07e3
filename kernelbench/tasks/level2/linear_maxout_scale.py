"""Linear layer, maxout over groups of its features and a scale (https://arxiv.org/abs/1302.4389)."""

import torch
from torch import nn

batch_size = 2048
in_features = 256
out_features = 320
pieces = 4


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int, pieces: int):
        super().__init__()
        self.pieces = pieces
        self.linear = nn.Linear(in_features, out_features * pieces)
        self.scale = nn.Parameter(torch.randn(out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).unflatten(-1, (-1, self.pieces)).amax(dim=-1) * self.scale


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, pieces]
