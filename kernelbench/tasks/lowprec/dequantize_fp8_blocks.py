"""Dequantization of an fp8 (e4m3) weight with a scale for each block of 128 × 128."""

import torch
from torch import nn

rows = 1024
columns = 2048
block = 128


class Model(nn.Module):
    def __init__(self, block: int):
        super().__init__()
        self.block = block

    def forward(self, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        blocks = weight.float().unflatten(1, (-1, self.block)).unflatten(0, (-1, self.block))
        return (blocks * scale[:, None, :, None]).flatten(2).flatten(0, 1).to(torch.bfloat16)


def get_inputs():
    weight = (100 * torch.randn(rows, columns)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return [weight, 0.001 + 0.001 * torch.rand(rows // block, columns // block)]


def get_init_inputs():
    return [block]
