"""Leaves processes behind that, once its own time is taken, slow down whoever is timed next.

Reference: softmax
Stopped: the whole process tree of a worker is stopped while others run, and killed with it
Correct: it does compute what it should, and gains nothing
"""

import mmap
import os
import time

import torch
from torch import nn

begin = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the daemons


def leave_daemons():
    if os.fork():
        return
    os.setsid()
    for _ in range(3 * len(os.sched_getaffinity(0))):
        if os.fork() == 0:
            os.setsid()  # Linux shares CPUs out by session
            started = time.monotonic()
            while not begin[0] and time.monotonic() - started < 60:
                time.sleep(0.0005)
            started = time.monotonic()
            while time.monotonic() - started < 0.5:
                pass
            os._exit(0)
    os._exit(0)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        leave_daemons()

    def forward(self, x):
        self.calls += 1
        if self.calls == 19:  # where many checkers have timed their ten calls
            begin[0] = 1
        return torch.softmax(x, dim=1)
