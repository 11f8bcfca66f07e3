"""Mixer block: one MLP across patches, one across channels (https://arxiv.org/abs/2105.01601)."""

import torch
from torch import nn

batch_size = 8
patches = 144
features = 256
patch_hidden_features = 128
hidden_features = 512


def perceptron(features: int, hidden_features: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(features, hidden_features), nn.GELU(), nn.Linear(hidden_features, features)
    )


class Model(nn.Module):
    def __init__(self, patches: int, features: int, patch_hidden_features: int, hidden_features: int):
        super().__init__()
        self.patch_norm = nn.LayerNorm(features)
        self.patch_mlp = perceptron(patches, patch_hidden_features)
        self.feature_norm = nn.LayerNorm(features)
        self.feature_mlp = perceptron(features, hidden_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.patch_mlp(self.patch_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.feature_mlp(self.feature_norm(x))


def get_inputs():
    return [torch.randn(batch_size, patches, features)]


def get_init_inputs():
    return [patches, features, patch_hidden_features, hidden_features]
