"""Linear layer on int8 activations and weights, with a scale for each token and each output channel."""

import torch
from torch import nn

tokens = 128
in_features = 1024  # sums of so many products of two int8 are exact in fp32
out_features = 2048


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        weight = torch.randint(-127, 128, (out_features, in_features), dtype=torch.int8)
        self.register_buffer("weight", weight)
        self.scale = nn.Parameter(0.001 + 0.001 * torch.rand(out_features))
        self.bias = nn.Parameter(torch.randn(out_features))

    def forward(self, x: torch.Tensor, x_scale: torch.Tensor) -> torch.Tensor:
        product = x.float() @ self.weight.float().T
        return product * x_scale * self.scale + self.bias


def get_inputs():
    x = torch.randint(-127, 128, (tokens, in_features), dtype=torch.int8)
    return [x, 0.01 + 0.01 * torch.rand(tokens, 1)]


def get_init_inputs():
    return [in_features, out_features]
