"""Has torch import what it imports when a dispatch mode sees its first call: once for all workers."""

import torch

from kernelbench.emulate.memory import fresh_memory

with fresh_memory():
    torch.empty(1)
