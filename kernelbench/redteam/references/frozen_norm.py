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

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        bias = self.bias - self.running_mean * scale
        return x * scale.view(1, -1, 1, 1) + bias.view(1, -1, 1, 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = FrozenBatchNorm2d()

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(8, channels, 48, 48)]


def get_init_inputs():
    return []
