import torch
from torch import nn

rows = 512
features = 1024


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x))


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features]
