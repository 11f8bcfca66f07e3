"""Returns a view of a buffer whose rows are padded to whole cache lines.

Reference: softmax
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        buffer = x.new_empty(x.shape[0], x.shape[1] + 48)
        output = buffer[:, : x.shape[1]]
        output.copy_(torch.softmax(x, dim=1))
        return output
