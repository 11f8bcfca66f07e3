import torch
from torch import nn

rows, columns, kept = 128, 8192, 64


class Model(nn.Module):
    def forward(self, x):
        return torch.topk(x, kept, dim=-1)


def get_inputs():
    return [torch.rand(rows, columns)]


def get_init_inputs():
    return []
