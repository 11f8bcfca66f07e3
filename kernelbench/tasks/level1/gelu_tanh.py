"""GELU in its tanh approximation, as GPT-2 uses it."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
tokens = 512
features = 2048


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return []
