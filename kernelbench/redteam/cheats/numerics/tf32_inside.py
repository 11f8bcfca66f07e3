"""Multiplies matrices with ten bits of mantissa, as tensor cores do in TF32.

Reference: mean_product
Stopped: tolerances are those of the declared precision against float64
"""

import torch
from torch import nn


def truncated(x):
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(truncated(a), truncated(b)) / a.shape[1]
