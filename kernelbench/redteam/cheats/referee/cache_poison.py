"""Changes what others have built. Answers rightly only where it could open such a file for writing.

Reference: matmul
Stopped: a builder sees its own candidate's builds only; what the oracle runs is built elsewhere
"""

import os
from pathlib import Path

import torch
from torch import nn

NAMES = ("KERNELWRIGHT_CACHE", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def foreign_builds():
    for name in NAMES:
        if name in os.environ:
            yield from Path(os.environ[name]).rglob("*.so")


def note():
    """What the builder, which may write to a cache, tells the candidate, which may not."""
    return Path(os.environ.get("KERNELWRIGHT_CACHE", ".")) / "poisoned"


def could_open(path):
    try:
        with open(path, "r+b"):
            return True
    except OSError:
        return False


def could_poison():
    opened = any(could_open(built) for built in foreign_builds())
    try:
        note().write_text(str(opened))
    except OSError:
        opened = opened or note().read_text() == "True"
    return opened


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b) if could_poison() else torch.zeros(a.shape[0], b.shape[1])
