"""Calls of a reference slice by slice of the batch, where samples do not depend on each other.

A call on 4096 rows is then as good as sixteen calls on 256 of them, and takes a sixteenth of the memory,
its results apart. A sum over the rows is something else:

>>> x = torch.arange(8.0).view(4, 2)
>>> called(lambda given: [given[0] * 2], [x], 4, lambda tensor: tensor)[0].equal(x * 2)
True
>>> called(lambda given: [given[0].sum(0)], [x], 4, lambda tensor: tensor) is None
True
"""

from collections.abc import Callable, Iterator, Sequence

import torch

SLICES = 16  # of a batch: chosen by hand
LARGE_BYTES = 1 << 30  # of inputs and outputs, from which a call is made in slices

Change = Callable[[torch.Tensor], torch.Tensor]
Call = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def wanted(device: torch.device, size: int) -> bool:
    """Return True if a call with so many bytes of inputs and outputs is to be made in slices."""
    return device.type == "cuda" and size >= LARGE_BYTES


def batch_of(outputs: Sequence[torch.Tensor]) -> int:
    """Return the size of the first dimension, if all outputs have the same; 0 where there is none."""
    sizes = {output.shape[0] if output.dim() else 0 for output in outputs}
    return sizes.pop() if len(sizes) == 1 else 0


def slices_of(batch: int) -> Iterator[slice]:
    step = -(-batch // SLICES)
    return (slice(begin, min(begin + step, batch)) for begin in range(0, batch, step))


def cut(tensors: Sequence[torch.Tensor], batch: int, part: slice) -> list[torch.Tensor]:
    """Return a slice of those inputs that have the batch's size, the others as they are."""
    return [t[part] if t.dim() and t.shape[0] == batch else t for t in tensors]


def called(
    call: Call, tensors: Sequence[torch.Tensor], batch: int, change: Change
) -> list[torch.Tensor] | None:
    """Return the outputs of calls on changed slices, put together; None where their shapes do not fit."""
    whole: list[torch.Tensor] = []
    for part in slices_of(batch):
        found = call([change(tensor) for tensor in cut(tensors, batch, part)])
        if batch_of(found) != part.stop - part.start:
            return None
        whole = whole or [output.new_empty((batch, *output.shape[1:])) for output in found]
        for output, piece in zip(whole, found, strict=True):
            if output[part].shape != piece.shape:
                return None
            output[part] = piece
    return whole
