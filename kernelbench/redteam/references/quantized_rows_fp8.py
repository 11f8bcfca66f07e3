import torch
from torch import nn

rows, columns = 512, 512


class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 448
        return (x / scale).to(torch.float8_e4m3fn), scale


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
