"""Twice the ReLU of every element, in cuTile."""

import cuda.tile as ct
import torch
from torch import nn

SIZE = 1024


@ct.kernel
def twice_relu(x, y, size: ct.Constant[int]):
    block = ct.bid(0)
    value = ct.load(x, index=(block,), shape=(size,))
    ct.store(y, index=(block,), tile=ct.maximum(value, 0.0) * 2.0)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        grid = (ct.cdiv(x.numel(), SIZE), 1, 1)
        ct.launch(torch.cuda.current_stream(), grid, twice_relu, (x.view(-1), y.view(-1), SIZE))
        return y
