import torch
from torch import nn

rows, terms, columns = 128, 4096, 128


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.rand(rows, terms), torch.rand(terms, columns)]


def get_init_inputs():
    return []
