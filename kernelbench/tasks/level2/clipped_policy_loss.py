"""Clipped PPO loss with a KL penalty, averaged over every sequence (https://arxiv.org/abs/1707.06347)."""

import torch
from torch import nn

sequences = 1024
tokens = 2048
clip = 0.2
kl_weight = 0.05
input_domains = ["real", "real", "real", "mask"]


class Model(nn.Module):
    def __init__(self, clip: float, kl_weight: float):
        super().__init__()
        self.clip = clip
        self.kl_weight = kl_weight

    def forward(
        self, log_prob: torch.Tensor, old_log_prob: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        difference = torch.clamp(log_prob - old_log_prob, -20, 20)
        ratio = torch.exp(difference)
        clipped = torch.clamp(ratio, 1 - self.clip, 1 + self.clip)
        surrogate = torch.minimum(ratio * advantage, clipped * advantage)
        penalty = torch.exp(-difference) + difference - 1
        loss = self.kl_weight * penalty - surrogate
        return (loss * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


def get_inputs():
    old_log_prob = -torch.rand(sequences, tokens)
    log_prob = old_log_prob + 0.3 * torch.randn(sequences, tokens)
    advantage = torch.randn(sequences, tokens) + torch.randn(sequences, 1)
    return [log_prob, old_log_prob, advantage, torch.rand(sequences, tokens) < 0.8]


def get_init_inputs():
    return [clip, kl_weight]
