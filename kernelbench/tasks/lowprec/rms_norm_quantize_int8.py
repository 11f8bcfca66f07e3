"""RMSNorm whose result is quantized to int8, token by token."""

import torch
from torch import nn

tokens = 2048
features = 1024


class Model(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(features))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.weight
        scale = normal.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        return (normal / scale).round().to(torch.int8), scale


def get_inputs():
    x = torch.randn(tokens, features).to(torch.bfloat16)
    x[::32] = 0  # padding
    return [x]


def get_init_inputs():
    return [features]
