"""Arguments of a recorded launch, for the walk through its PTX."""

import struct
from collections.abc import Sequence
from typing import Any

import torch

from kernelwright.kernelbench.chips.ptx.tracing import LaunchArguments


def arguments(block: tuple[int, int, int], args: Sequence[Any]) -> LaunchArguments:
    """Return the arguments of a launch of blocks of `block` threads: tensors, numbers, or what is unknown."""
    values: list[int | None] = []
    tensors = []
    for value in args:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            values.append(value.data_ptr())
            tensors.append((storage.data_ptr(), storage.nbytes()))
        elif isinstance(value, int):
            values.append(value & (1 << 64) - 1)
        elif isinstance(value, float):
            values.append(int.from_bytes(struct.pack("<f", value), "little"))
        else:
            values.append(None)
    return LaunchArguments(block, tuple(values), tuple(tensors))
