"""Product of two NVFP4 matrices: e2m1 numbers by an e4m3 scale for each 16 of a row, and a global scale."""

import torch
from torch import nn

tokens = 64
in_features = 256
out_features = 256


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        sizes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        self.register_buffer("numbers", torch.cat([sizes, -sizes]))
        packed = torch.randint(0, 256, (out_features, in_features // 2), dtype=torch.uint8)
        self.register_buffer("packed", packed)
        scales = (200 * torch.rand(out_features, in_features // 16)).to(torch.float8_e4m3fn)
        self.register_buffer("scales", scales)

    def unpacked(self, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        return (self.numbers[codes.int()].unflatten(-1, (-1, 16)) * scales.float()[..., None]).flatten(-2)

    def forward(self, packed: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
        x, weight = self.unpacked(packed, scales), self.unpacked(self.packed, self.scales)
        return (x @ weight.T * global_scale).to(torch.bfloat16)


def get_inputs():
    packed = torch.randint(0, 256, (tokens, in_features // 2), dtype=torch.uint8)
    scales = (200 * torch.rand(tokens, in_features // 16)).to(torch.float8_e4m3fn)
    return [packed, scales, 1e-6 + 1e-6 * torch.rand(1)]


def get_init_inputs():
    return [in_features, out_features]
