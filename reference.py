import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()

    def forward(self, x):
        return x.cumsum(0)


def get_inputs():
    return [torch.randn(33, 3, 2, 1)]


def get_init_inputs():
    return [1]
