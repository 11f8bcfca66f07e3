"""Computes two halves on two streams and joins them before it returns.

Reference: layer_norm_gelu
Device: cuda
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.streams = None

    def forward(self, x):
        if self.streams is None:
            self.streams = [torch.cuda.Stream() for _ in range(2)]
        here = torch.cuda.current_stream()
        output = torch.empty_like(x)
        for stream, rows, results in zip(self.streams, x.chunk(2), output.chunk(2), strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                results.copy_(torch.nn.functional.gelu(self.norm(rows)))
        for stream in self.streams:
            here.wait_stream(stream)
        return output
