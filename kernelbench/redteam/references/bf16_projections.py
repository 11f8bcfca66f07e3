import torch
from torch import nn

batch_size = 512
features = 256
keys = 64


class Model(nn.Module):
    def __init__(self, features, keys):
        super().__init__()
        self.q = nn.Linear(features, features, dtype=torch.bfloat16)
        self.k = nn.Linear(features, keys, dtype=torch.bfloat16)

    def forward(self, x):
        return self.q(x), self.k(x)


def get_inputs():
    return [torch.randn(batch_size, features, dtype=torch.bfloat16)]


def get_init_inputs():
    return [features, keys]
