"""A softmax whose smallest results are zero, as with nvcc --use_fast_math.

Reference: softmax
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.softmax(x, dim=-1)
        return torch.where(y < torch.finfo(torch.float32).smallest_normal, 0.0, y)
