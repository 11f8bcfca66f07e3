"""Warm-up done once for all workers.

Imports the emulation of `load_inline`, which workers may not read, and the modules torch imports when a
dispatch mode sees its first call; builds and loads the runtime of kernels.
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
