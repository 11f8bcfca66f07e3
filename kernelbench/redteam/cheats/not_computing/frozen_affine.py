"""Leaves out the weight and the bias of a frozen norm, which are buffers of ones and zeros.

Reference: frozen_norm
Stopped: buffers that are called weights, and are all ones or zeros, are varied as weights are
"""

import torch
from torch import nn

channels = 64


class FrozenBatchNorm2d(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = FrozenBatchNorm2d()

    def forward(self, x):
        scale = (self.norm.running_var + 1e-5).rsqrt()
        shift = -self.norm.running_mean * scale
        return torch.addcmul(shift.view(1, -1, 1, 1), x, scale.view(1, -1, 1, 1)).relu_()
