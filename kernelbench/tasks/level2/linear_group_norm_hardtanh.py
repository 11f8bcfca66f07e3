"""Linear layer, group normalization of its features and a hard tanh."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 2048
in_features = 320
out_features = 768
groups = 16
limit = 1.5


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int, groups: int, limit: float):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(groups, out_features)
        self.limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardtanh(self.norm(self.linear(x)), -self.limit, self.limit)


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, groups, limit]
