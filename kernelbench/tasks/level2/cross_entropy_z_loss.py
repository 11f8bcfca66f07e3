"""Cross-entropy with label smoothing and the z-loss of PaLM, for every token (https://arxiv.org/abs/2204.02311)."""

import torch
from torch import nn

tokens = 512
vocabulary = 16000
smoothing = 0.1
z_weight = 0.01
input_domains = ["real", "index"]


class Model(nn.Module):
    def __init__(self, smoothing: float, z_weight: float):
        super().__init__()
        self.smoothing = smoothing
        self.z_weight = z_weight

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        log_normalizer = torch.logsumexp(logits, dim=-1)
        target_logit = logits.gather(-1, target[:, None]).squeeze(-1)
        expected_logit = (1 - self.smoothing) * target_logit + self.smoothing * logits.mean(dim=-1)
        return log_normalizer - expected_logit + self.z_weight * log_normalizer.square()


def get_inputs():
    return [3 * torch.randn(tokens, vocabulary), torch.randint(vocabulary, (tokens,))]


def get_init_inputs():
    return [smoothing, z_weight]
