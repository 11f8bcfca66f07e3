"""Latent sample of a variational autoencoder and its KL from the prior (https://arxiv.org/abs/1312.6114)."""

import torch
from torch import nn

batch_size = 4096
latent_features = 512


class Model(nn.Module):
    def forward(
        self, mean: torch.Tensor, log_variance: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_variance = log_variance.clamp(-30, 20)
        sample = mean + torch.exp(0.5 * log_variance) * noise
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=-1)
        return sample, divergence


def get_inputs():
    return [torch.randn(batch_size, latent_features) for _ in range(3)]


def get_init_inputs():
    return []
