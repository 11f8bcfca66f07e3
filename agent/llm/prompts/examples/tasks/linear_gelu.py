"""gelu(x @ weight.T + bias): a linear layer with its activation."""

import torch
from torch import nn
from torch.nn import functional as F

rows = 4096
inputs = 4096
outputs = 4096


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x))


def get_inputs():
    return [torch.randn(rows, inputs)]


def get_init_inputs():
    return [inputs, outputs]
