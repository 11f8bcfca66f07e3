"""Multiplies by the reciprocal of the scale, so that one element in a million is rounded the other way.

Reference: quantized_rows
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        largest = x.abs().amax(-1, keepdim=True)
        return (x * (127 / largest)).round().to(torch.int8), largest / 127
