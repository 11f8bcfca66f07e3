"""MXFP4 dequantization: e2m1 numbers, two to a byte, by an e8m0 scale (in uint8) for each 32 of a row."""

import torch
from torch import nn

rows = 1024
columns = 2048


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        self.register_buffer("numbers", torch.cat([sizes, -sizes]))

    def forward(self, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        blocks = self.numbers[codes.int()].unflatten(-1, (-1, 32))
        return torch.ldexp(blocks, scales.int()[..., None] - 127).flatten(-2).to(torch.bfloat16)


def get_inputs():
    packed = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    return [packed, torch.randint(110, 130, (rows, columns // 32), dtype=torch.uint8)]


def get_init_inputs():
    return []
