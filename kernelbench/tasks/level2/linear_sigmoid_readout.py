"""Linear layer and sigmoid, read out into one number a row, so that the wide product need never be stored."""

import torch
from torch import nn

batch_size = 4096
in_features = 96
hidden_features = 1536


class Model(nn.Module):
    def __init__(self, in_features: int, hidden_features: int):
        super().__init__()
        self.linear = nn.Linear(in_features, hidden_features)
        self.readout = nn.Parameter(torch.randn(hidden_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.linear(x)) @ self.readout


def get_inputs():
    return [4 * torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, hidden_features]
