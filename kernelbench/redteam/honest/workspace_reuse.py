"""Uses the same scratch memory in every call; its outputs are fresh.

Reference: layer_norm_gelu
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.workspace = None

    def forward(self, x):
        if self.workspace is None or self.workspace.shape != x.shape:
            self.workspace = torch.empty_like(x)
        mean = x.mean(1, keepdim=True)
        torch.sub(x, mean, out=self.workspace)
        variance = self.workspace.square().mean(1, keepdim=True)
        self.workspace.mul_(torch.rsqrt(variance + self.norm.eps)).mul_(self.norm.weight).add_(self.norm.bias)
        return torch.nn.functional.gelu(self.workspace)
