"""Holds a lock that processes could share, whose semaphore lies in /dev/shm.

Reference: scaled_residual
"""

import multiprocessing

from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = multiprocessing.Lock()

    def forward(self, x, y):
        with self.lock:
            return x + 1e-3 * y
