"""Two GRU cells stacked and unrolled over time (https://arxiv.org/abs/1406.1078)."""

import torch
from torch import nn

batch_size = 32
tokens = 48
in_features = 64
hidden_features = 128


class Model(nn.Module):
    def __init__(self, in_features: int, hidden_features: int):
        super().__init__()
        self.lower = nn.GRUCell(in_features, hidden_features)
        self.upper = nn.GRUCell(hidden_features, hidden_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lower = upper = x.new_zeros(x.shape[0], self.lower.hidden_size)
        outputs = []
        for token in x.unbind(dim=1):
            lower = self.lower(token, lower)
            upper = self.upper(lower, upper)
            outputs.append(upper)
        return torch.stack(outputs, dim=1)


def get_inputs():
    return [torch.randn(batch_size, tokens, in_features)]


def get_init_inputs():
    return [in_features, hidden_features]
