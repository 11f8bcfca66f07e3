"""Hinge loss max(0, 1 - y * t) of every sample."""

import torch
from torch import nn

batch_size = 8192
features = 512
input_domains = ["real", "sign"]


class Model(nn.Module):
    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.clamp(1 - prediction * target, min=0).mean(dim=-1)


def get_inputs():
    target = torch.randint(2, (batch_size, features)) * 2.0 - 1.0
    return [3 * torch.rand(batch_size, 1) * torch.randn(batch_size, features), target]


def get_init_inputs():
    return []
