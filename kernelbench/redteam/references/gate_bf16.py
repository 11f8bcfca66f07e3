import torch
from torch import nn

rows, columns = 256, 1024


class Model(nn.Module):
    def forward(self, x, gate):
        return nn.functional.silu(x) * gate


def get_inputs():
    return [torch.randn(rows, columns, dtype=torch.bfloat16) for _ in range(2)]


def get_init_inputs():
    return []
