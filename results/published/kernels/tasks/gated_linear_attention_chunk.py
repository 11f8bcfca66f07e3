"""One chunk of linear attention with a decaying state (https://arxiv.org/abs/2312.06635).

`gate` is the logarithm of the decay at each token, one for all features of a head; the state of what was
before comes in, that of what comes after goes out.
"""

import torch
from torch import nn

batch_size = 8
heads = 4
tokens = 64
head_features = 64
workload = [{"batch_size": 8}, {"batch_size": 1}, {"batch_size": 3, "hidden": True}]


class Model(nn.Module):
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        gate: torch.Tensor,
        state: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = gate.cumsum(dim=-1)
        between = torch.exp((total[..., :, None] - total[..., None, :]).tril()).tril()
        inside = ((query @ key.transpose(-1, -2)) * between) @ value
        before = torch.exp(total)[..., None] * (query @ state)
        left = torch.exp(total[..., -1:] - total)[..., None]
        after = torch.exp(total[..., -1])[..., None, None] * state + (left * key).transpose(-1, -2) @ value
        return inside + before, after


def get_inputs():
    query, key, value = (torch.randn(batch_size, heads, tokens, head_features) for _ in range(3))
    gate = nn.functional.logsigmoid(torch.randn(batch_size, heads, tokens))
    state = torch.randn(batch_size, heads, head_features, head_features)
    return [query, key / head_features**0.5, value, gate, state]


def get_init_inputs():
    return []
