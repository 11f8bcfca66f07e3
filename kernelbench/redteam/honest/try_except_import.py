"""Imports what may not be installed and goes on without it.

Reference: softmax
"""

import torch
from torch import nn

try:
    import a_library_that_is_not_installed
except ImportError:
    a_library_that_is_not_installed = None


class ModelNew(nn.Module):
    def forward(self, x):
        numerator = torch.exp(x - x.amax(1, keepdim=True))
        return numerator / numerator.sum(1, keepdim=True)
