"""NVFP4 dequantization: e2m1 numbers, two to a byte, an e4m3 scale for each 16 of a row, a global scale."""

import torch
from torch import nn

rows = 1024
columns = 2048


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        self.register_buffer("numbers", torch.cat([sizes, -sizes]))

    def forward(self, packed: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        blocks = self.numbers[codes.int()].unflatten(-1, (-1, 16))
        return (blocks * (scales.float() * global_scale)[..., None]).flatten(-2).to(torch.bfloat16)


def get_inputs():
    packed = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    scales = (200 * torch.rand(rows, columns // 16)).to(torch.float8_e4m3fn)
    return [packed, scales, 0.001 + 0.001 * torch.rand(1)]


def get_init_inputs():
    return []
