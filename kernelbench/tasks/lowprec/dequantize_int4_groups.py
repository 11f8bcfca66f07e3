"""Dequantization of an int4 weight, eight to an int32, with scales and zero points of groups of 128 rows."""

import torch
from torch import nn

in_features = 1024
out_features = 2048
group = 128


class Model(nn.Module):
    def __init__(self, group: int):
        super().__init__()
        self.group = group
        self.register_buffer("shifts", torch.arange(0, 32, 4, dtype=torch.int32))

    def forward(self, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        numbers = (packed[:, :, None] >> self.shifts) & 15
        zero_points = (zeros[:, :, None] >> self.shifts) & 15
        groups = numbers.flatten(1).unflatten(0, (-1, self.group)).float()
        groups = (groups - zero_points.flatten(1)[:, None].float()) * scales[:, None].float()
        return groups.flatten(0, 1).to(torch.bfloat16)


def get_inputs():
    packed = torch.randint(-(2**31), 2**31, (in_features, out_features // 8), dtype=torch.int32)
    zeros = torch.randint(-(2**31), 2**31, (in_features // group, out_features // 8), dtype=torch.int32)
    scales = (0.01 + 0.01 * torch.rand(in_features // group, out_features)).to(torch.bfloat16)
    return [packed, scales, zeros]


def get_init_inputs():
    return [group]
