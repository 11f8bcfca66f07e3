import torch
from torch import nn

rows = 1024
columns = 1024


class Model(nn.Module):
    def forward(self, x, y):
        return x + 1e-3 * y


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, columns)]


def get_init_inputs():
    return []
