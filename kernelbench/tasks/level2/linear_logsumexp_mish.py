"""Linear layer, log-sum-exp over its features and Mish."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 2048
in_features = 192
out_features = 2048


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mish(torch.logsumexp(self.linear(x), dim=-1) - 8)


def get_inputs():
    return [4 * torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
