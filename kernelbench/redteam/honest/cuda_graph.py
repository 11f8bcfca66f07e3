"""Replays a CUDA graph: the input is copied in, the output is copied out.

Reference: layer_norm_gelu
Device: cuda
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.graph = None

    def compute(self, x):
        return torch.nn.functional.gelu(self.norm(x))

    def capture(self, x):
        self.input = x.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.compute(self.input)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = self.compute(self.input)

    def forward(self, x):
        if self.graph is None or self.input.shape != x.shape:
            self.capture(x)
        self.input.copy_(x)
        self.graph.replay()
        return self.output.clone()
