"""Normalization of rows."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[1:], eps=1e-5)


def get_inputs():
    return [4 + torch.randn(256, 768)]


def get_init_inputs():
    return []
