"""Twice the ReLU of every element, in Helion."""

import helion
import helion.language as hl
import torch
from torch import nn


@helion.kernel(config=helion.Config(block_sizes=[32, 32]))
def twice_relu(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.size()
    y = torch.empty_like(x)
    for tile_rows, tile_columns in hl.tile([rows, columns]):
        y[tile_rows, tile_columns] = torch.relu(x[tile_rows, tile_columns]) * 2
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return twice_relu(x)
