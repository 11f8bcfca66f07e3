"""Linear layer with a scaled low-rank update (https://arxiv.org/abs/2106.09685)."""

import torch
from torch import nn

batch_size = 1024
in_features = 768
out_features = 640
rank = 16
scale = 2.0


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int, rank: int, scale: float):
        super().__init__()
        self.scale = scale
        self.linear = nn.Linear(in_features, out_features)
        self.down = nn.Linear(in_features, rank, bias=False)
        self.up = nn.Linear(rank, out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.scale * self.up(self.down(x))


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, rank, scale]
