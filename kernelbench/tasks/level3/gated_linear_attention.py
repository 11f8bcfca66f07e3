"""Linear attention whose matrix state decays by a learned gate (https://arxiv.org/abs/2312.06635)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 4
tokens = 64
features = 128
heads = 4
temperature = 16.0


class Model(nn.Module):
    def __init__(self, features: int, heads: int, temperature: float):
        super().__init__()
        self.heads = heads
        self.temperature = temperature
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.decay = nn.Linear(features, features)
        self.norm = nn.RMSNorm(features // heads, eps=1e-5)
        self.gate = nn.Linear(features, features)
        self.out = nn.Linear(features, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(dim=2)
        decay = torch.exp(F.logsigmoid(self.decay(x)) / self.temperature).unflatten(-1, (self.heads, -1))
        state = x.new_zeros(x.shape[0], self.heads, query.shape[-1], query.shape[-1])
        outputs = []
        for step in range(x.shape[1]):
            update = key[:, step, :, :, None] * value[:, step, :, None, :]
            state = decay[:, step, :, :, None] * state + update
            outputs.append((query[:, step, :, None, :] @ state).squeeze(-2))
        attended = self.norm(torch.stack(outputs, dim=1)).flatten(2)
        return self.out(attended * F.silu(self.gate(x)))


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features, heads, temperature]
