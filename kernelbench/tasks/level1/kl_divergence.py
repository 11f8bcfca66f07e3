"""Kullback-Leibler divergence of a log-softmax from a target distribution, for every sample."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 1024
classes = 4096
input_domains = ["real", "probability"]


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.kl_div(torch.log_softmax(logits, dim=-1), target, reduction="none").sum(dim=-1)


def get_inputs():
    target = torch.softmax(2 * torch.randn(batch_size, classes), dim=-1)
    return [torch.rand(batch_size, 1) * torch.randn(batch_size, classes), target]


def get_init_inputs():
    return []
