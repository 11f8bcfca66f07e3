"""What is imported once for all workers: `load_inline`'s emulation, which they may not read, and what torch
imports when a dispatch mode sees its first call.
"""

import torch

import kernelbench.emulate.extension  # noqa: F401
from kernelbench.emulate.memory import fresh_memory

with fresh_memory():
    torch.empty(1)
