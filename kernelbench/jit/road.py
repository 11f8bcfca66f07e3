"""Whether CUDA kernels are launched on a GPU or emulated, whatever host code is told of GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Road = Literal["gpu", "emulation"]
_settled: list[Road] = []


def on_gpu() -> bool:
    """As it was settled, else whether torch sees a GPU."""
    import torch

    return _settled[-1] == "gpu" if _settled else torch.cuda.is_available()


@contextmanager
def settled(road: Road) -> Iterator[None]:
    """In the block kernels take this road."""
    _settled.append(road)
    try:
        yield
    finally:
        _settled.pop()
