"""A decoder's feed-forward block, down(silu(gate(x)) * up(x)) (https://arxiv.org/abs/2002.05202)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
tokens = 128
features = 256
hidden_features = 704
workload = [
    {"batch_size": 8, "tokens": 128},
    {"batch_size": 1, "tokens": 77},
    {"batch_size": 3, "tokens": 200, "hidden": True},
]


class Model(nn.Module):
    def __init__(self, features: int, hidden_features: int):
        super().__init__()
        self.gate_proj = nn.Linear(features, hidden_features, bias=False)
        self.up_proj = nn.Linear(features, hidden_features, bias=False)
        self.down_proj = nn.Linear(hidden_features, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features, hidden_features]
