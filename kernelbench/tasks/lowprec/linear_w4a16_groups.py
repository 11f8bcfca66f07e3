"""Linear layer in bf16 on an int4 weight, two to a byte, with a scale for each 128 elements of a row."""

import torch
from torch import nn

tokens = 32
in_features = 1024
out_features = 2048
group = 128


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int, group: int):
        super().__init__()
        self.group = group
        packed = torch.randint(0, 256, (out_features, in_features // 2), dtype=torch.uint8)
        self.register_buffer("packed", packed)
        self.scale = nn.Parameter((0.01 + 0.01 * torch.rand(out_features, in_features // group)).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = torch.stack([self.packed & 15, self.packed >> 4], -1).flatten(1).float() - 8
        weight = numbers.unflatten(1, (-1, self.group)) * self.scale.float()[:, :, None]
        return (x.float() @ weight.flatten(1).T).to(torch.bfloat16)


def get_inputs():
    return [torch.randn(tokens, in_features).to(torch.bfloat16)]


def get_init_inputs():
    return [in_features, out_features, group]
