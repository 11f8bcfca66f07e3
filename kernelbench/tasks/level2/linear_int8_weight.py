"""Linear layer whose 8-bit integer weight is scaled row by row before the product, with a ReLU."""

import torch
from torch import nn

batch_size = 128
in_features = 2048
out_features = 2304


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        weight = torch.randint(-127, 128, (out_features, in_features), dtype=torch.int8)
        self.register_buffer("weight", weight)
        self.scale = nn.Parameter(0.01 * torch.rand(out_features, 1))
        self.bias = nn.Parameter(torch.randn(out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(x.dtype) * self.scale
        return torch.relu(x @ weight.T + self.bias)


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
