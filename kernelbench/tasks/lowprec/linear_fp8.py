"""Linear layer on fp8 (e4m3) activations and weights, with a scale for each row of both."""

import torch
from torch import nn

tokens = 128
in_features = 1024
out_features = 2048


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        weight = (100 * torch.randn(out_features, in_features)).clamp(-448, 448)
        self.register_buffer("weight", weight.to(torch.float8_e4m3fn))
        self.scale = nn.Parameter(0.001 + 0.001 * torch.rand(out_features))

    def forward(self, x: torch.Tensor, x_scale: torch.Tensor) -> torch.Tensor:
        product = x.float() @ self.weight.float().T
        return (product * x_scale * self.scale).to(torch.bfloat16)


def get_inputs():
    x = (100 * torch.randn(tokens, in_features)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return [x, 0.001 + 0.001 * torch.rand(tokens, 1)]


def get_init_inputs():
    return [in_features, out_features]
