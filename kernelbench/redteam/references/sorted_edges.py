import torch
from torch import nn

bins, rows, columns = 1000, 512, 1024


class Model(nn.Module):
    def forward(self, edges, x):
        return torch.searchsorted(edges, x)


def get_inputs():
    return [torch.randn(bins).sort().values, torch.randn(rows, columns)]


def get_init_inputs():
    return []
