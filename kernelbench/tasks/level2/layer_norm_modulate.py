"""Layer norm modulated by a condition, with a gated residual (DiT, https://arxiv.org/abs/2212.09748)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 16
tokens = 256
features = 1152


class Model(nn.Module):
    def forward(
        self, x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor, gate: torch.Tensor
    ) -> torch.Tensor:
        normalized = F.layer_norm(x, x.shape[-1:])
        modulated = normalized * (1 + scale[:, None]) + shift[:, None]
        return x + gate[:, None] * modulated


def get_inputs():
    return [torch.randn(batch_size, tokens, features), *(torch.randn(batch_size, features) for _ in range(3))]


def get_init_inputs():
    return []
