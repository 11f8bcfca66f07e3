"""LayerNorm of a decoder's hidden states (https://arxiv.org/abs/1607.06450)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
tokens = 128
features = 256
workload = [
    {"batch_size": 8, "tokens": 128},
    {"batch_size": 1, "tokens": 77},
    {"batch_size": 3, "tokens": 200, "hidden": True},
]


class Model(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(hidden, self.weight.shape, self.weight, self.bias)


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features]
