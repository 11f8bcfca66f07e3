"""Focal loss of a multi-label classifier, for every sample (https://arxiv.org/abs/1708.02002)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 2048
classes = 1000
alpha = 0.25
gamma = 2.0
input_domains = ["real", "mask"]


class Model(nn.Module):
    def __init__(self, alpha: float, gamma: float):
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        probability = torch.sigmoid(logits)
        miss = probability + target - 2 * probability * target
        weight = self.alpha * target + (1 - self.alpha) * (1 - target)
        return (weight * miss**self.gamma * entropy).sum(dim=-1)


def get_inputs():
    logits = 2 * torch.randn(batch_size, classes) + torch.randn(batch_size, 1)
    return [logits, (torch.rand(batch_size, classes) < 0.2) * 1.0]


def get_init_inputs():
    return [alpha, gamma]
