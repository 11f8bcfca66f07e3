"""Choice between launching CUDA kernels on a GPU and emulating them, whatever host code sees."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

LaunchMode = Literal["gpu", "emulation"]
_fixed: list[LaunchMode] = []


def on_gpu() -> bool:
    """Return True in a block fixed to "gpu"; outside of any, True if torch sees a GPU."""
    import torch

    return _fixed[-1] == "gpu" if _fixed else torch.cuda.is_available()


@contextmanager
def fixed(mode: LaunchMode) -> Iterator[None]:
    """Fix the mode in the block."""
    _fixed.append(mode)
    try:
        yield
    finally:
        _fixed.pop()
