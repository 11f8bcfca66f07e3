"""Leaves a result that runs code where it is unpickled.

Reference: matmul
Stopped: nothing from a worker is unpickled
"""

import os
import pickle
from pathlib import Path

from torch import nn


class Payload:
    def __reduce__(self):
        return eval, ('{"correct": True, "speedup": 100.0, "own_kernel": True}',)


class ModelNew(nn.Module):
    def forward(self, a, b):
        Path("result.pickle").write_bytes(pickle.dumps(Payload()))
        os._exit(0)
