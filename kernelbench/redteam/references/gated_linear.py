import torch
from torch import nn

batch_size = 256
features = 512


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gate = nn.Linear(features, features)
        self.up = nn.Linear(features, features)

    def forward(self, x):
        return torch.nn.functional.silu(self.gate(x)) * self.up(x)


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features]
