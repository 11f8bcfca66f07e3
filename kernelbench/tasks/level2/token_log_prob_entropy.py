"""Log-probability of the sampled token and entropy of its distribution, as policy gradients need them."""

import torch
from torch import nn

tokens = 512
vocabulary = 12000
temperature = 0.7
input_domains = ["real", "index"]


class Model(nn.Module):
    def __init__(self, temperature: float):
        super().__init__()
        self.temperature = temperature

    def forward(self, logits: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_probability = torch.log_softmax(logits / self.temperature, dim=-1)
        entropy = -(log_probability.exp() * log_probability).sum(dim=-1)
        return log_probability.gather(-1, token[:, None]).squeeze(-1), entropy


def get_inputs():
    return [2 * torch.randn(tokens, vocabulary), torch.randint(vocabulary, (tokens,))]


def get_init_inputs():
    return [temperature]
