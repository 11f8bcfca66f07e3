"""Mixture of SwiGLU experts, top-k routed, with every expert evaluated densely (https://arxiv.org/abs/2401.04088)."""

import torch
import torch.nn.functional as F
from torch import nn

tokens = 384
features = 128
hidden_features = 256
experts = 8
active_experts = 2


class Model(nn.Module):
    def __init__(self, features: int, hidden_features: int, experts: int, active_experts: int):
        super().__init__()
        self.active_experts = active_experts
        self.router = nn.Linear(features, experts, bias=False)
        self.gate = nn.Parameter(torch.randn(experts, features, hidden_features) * features**-0.5)
        self.value = nn.Parameter(torch.randn(experts, features, hidden_features) * features**-0.5)
        self.out = nn.Parameter(torch.randn(experts, hidden_features, features) * hidden_features**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits, chosen = self.router(x).topk(self.active_experts, dim=-1)
        share = x.new_zeros(x.shape[0], self.router.out_features)
        share = share.scatter(-1, chosen, torch.softmax(logits, dim=-1))
        hidden = F.silu(x @ self.gate) * (x @ self.value)
        return (share.T[:, :, None] * (hidden @ self.out)).sum(dim=0)


def get_inputs():
    return [torch.randn(tokens, features)]


def get_init_inputs():
    return [features, hidden_features, experts, active_experts]
