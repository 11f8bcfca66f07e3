import torch
from torch import nn

rows, columns = 1024, 1024


class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round().to(torch.int8), scale


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
