"""Linear layer in fp8 (e4m3), with a scale for each 128 of a token and each 128 × 128 of the weight."""

import torch
from torch import nn

tokens = 128
in_features = 1024
out_features = 2048
block = 128


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int, block: int):
        super().__init__()
        self.block = block
        weight = (100 * torch.randn(out_features, in_features)).clamp(-448, 448)
        self.register_buffer("weight", weight.to(torch.float8_e4m3fn))
        scale = 0.001 + 0.001 * torch.rand(out_features // block, in_features // block)
        self.scale = nn.Parameter(scale)

    def forward(self, x: torch.Tensor, x_scale: torch.Tensor) -> torch.Tensor:
        x_blocks = x.float().unflatten(1, (-1, self.block)) * x_scale[:, :, None]
        weight = self.weight.float().unflatten(1, (-1, self.block)).unflatten(0, (-1, self.block))
        weight = (weight * self.scale[:, None, :, None]).flatten(2).flatten(0, 1)
        return (x_blocks.flatten(1) @ weight.T).to(torch.bfloat16)


def get_inputs():
    x = (100 * torch.randn(tokens, in_features)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return [x, 0.001 + 0.001 * torch.rand(tokens, in_features // block)]


def get_init_inputs():
    return [in_features, out_features, block]
