"""Layer normalization of a residual sum, the seam between two transformer blocks."""

import torch
from torch import nn

batch_size = 8
tokens = 512
features = 1024


class Model(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.bias + residual)


def get_inputs():
    return [torch.randn(batch_size, tokens, features) for _ in range(2)]


def get_init_inputs():
    return [features]
