"""SwiGLU gate, silu(a) * b, of a projection that holds both halves (https://arxiv.org/abs/2002.05202)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
tokens = 256
hidden_features = 2816


class Model(nn.Module):
    def forward(self, projected: torch.Tensor) -> torch.Tensor:
        gate, value = projected.chunk(2, dim=-1)
        return F.silu(gate) * value


def get_inputs():
    return [torch.randn(batch_size, tokens, 2 * hidden_features)]


def get_init_inputs():
    return []
