"""Returns the transpose of a contiguous tensor.

Reference: matmul
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(b.t().contiguous(), a.t().contiguous()).t()
