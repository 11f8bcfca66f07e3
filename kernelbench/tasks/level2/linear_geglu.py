"""Two projections of one input, multiplied after a GELU of the first (https://arxiv.org/abs/2002.05202)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 1024
in_features = 384
hidden_features = 1024


class Model(nn.Module):
    def __init__(self, in_features: int, hidden_features: int):
        super().__init__()
        self.gate = nn.Linear(in_features, hidden_features)
        self.value = nn.Linear(in_features, hidden_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.gate(x), approximate="tanh") * self.value(x)


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, hidden_features]
