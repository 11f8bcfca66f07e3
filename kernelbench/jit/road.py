"""Choice between launching CUDA kernels on a GPU and emulating them, whatever host code sees."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Road = Literal["gpu", "emulation"]
_settled: list[Road] = []


def on_gpu() -> bool:
    """Return the settled choice, else True if torch sees a GPU."""
    import torch

    return _settled[-1] == "gpu" if _settled else torch.cuda.is_available()


@contextmanager
def settled(road: Road) -> Iterator[None]:
    """Settle the choice in the block."""
    _settled.append(road)
    try:
        yield
    finally:
        _settled.pop()
