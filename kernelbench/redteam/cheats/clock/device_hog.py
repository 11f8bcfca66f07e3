"""Leaves kernels behind that keep the device busy while the baseline has its turn.

Reference: softmax
Device: cuda
Stopped: a worker's turn lasts until the device is at rest, and whose kernels never end is killed
"""

import torch
from torch import nn

CYCLES = 20_000_000_000  # about 10 s


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = None

    def forward(self, x):
        if self.side is None:
            self.side = torch.cuda.Stream()
            torch.cuda.synchronize = lambda *_: torch.cuda.current_stream().synchronize()
            with torch.cuda.stream(self.side):
                torch.cuda._sleep(CYCLES)
        return torch.softmax(x, dim=1)
