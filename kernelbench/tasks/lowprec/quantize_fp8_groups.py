"""Dynamic fp8 (e4m3) quantization with a scale for each group of 128 elements of a row."""

import torch
from torch import nn

tokens = 2048
features = 1024
group = 128


class Model(nn.Module):
    def __init__(self, group: int):
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        groups = x.float().unflatten(-1, (-1, self.group))
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448
        quantized = (groups / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return quantized.flatten(-2), scale.squeeze(-1)


def get_inputs():
    return [torch.randn(tokens, features).to(torch.bfloat16)]


def get_init_inputs():
    return [group]
