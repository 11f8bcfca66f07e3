"""What is done once for all workers: importing `load_inline`'s emulation, which they may not read, and what
torch imports when a dispatch mode sees its first call; building and loading what runs kernels.
"""

import contextlib

import torch

import kernelwright.kernelbench.emulate.extension  # noqa: F401
from kernelwright.kernelbench.emulate.building import runtime
from kernelwright.kernelbench.emulate.memory import fresh_memory
from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.jit.errors import BuildError

with fresh_memory():
    torch.empty(1)
with contextlib.suppress(BuildError, MissingPrerequisite):  # which whoever builds a kernel is told, too
    runtime()
