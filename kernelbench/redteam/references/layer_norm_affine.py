import torch
from torch import nn

rows = 512
features = 1024


class Model(nn.Module):
    def forward(self, x, weight, bias):
        return torch.nn.functional.layer_norm(x, x.shape[-1:]) * weight + bias


def get_inputs():
    return [torch.randn(rows, features), torch.ones(features), torch.zeros(features)]


def get_init_inputs():
    return []
