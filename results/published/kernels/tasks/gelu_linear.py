"""A linear layer with GELU after it, its tanh form (https://arxiv.org/abs/1606.08415)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
tokens = 128
features = 256
hidden_features = 1024
workload = [
    {"batch_size": 8, "tokens": 128},
    {"batch_size": 1, "tokens": 77},
    {"batch_size": 3, "tokens": 200, "hidden": True},
]


class Model(nn.Module):
    def __init__(self, features: int, hidden_features: int):
        super().__init__()
        self.linear = nn.Linear(features, hidden_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x), approximate="tanh")


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features, hidden_features]
