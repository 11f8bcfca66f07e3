"""Distributed tensors (DTensor): each rank's kernel computes its part if the kernel's rows are split.

Rows are dimensions along which a part of the outputs needs only that part of the inputs and all weights. So
the outputs are placed as the inputs are, and a weight's gradient is a sum over ranks (`Partial`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from .envelope import Argument
from .operators import Tensors


def problem(tensors: Sequence[Any], inputs: Sequence[Argument], rows: Sequence[int]) -> str:
    """Return the reason the kernel cannot compute parts of these inputs and weights; "" if it can.

    The answer is the same on all ranks, which must proceed alike.
    """
    if odd := [type(each).__name__ for each in tensors if type(each) is not DTensor]:
        return f"it was called with a {odd[0]} among distributed tensors"
    first, count = tensors[0], len(inputs)
    if any(each.device_mesh != first.device_mesh for each in tensors):
        return "its tensors are on several device meshes"
    if any(each.placements != first.placements for each in tensors[:count]):
        return "its inputs have different placements"
    if not all(type(each) is Replicate for weight in tensors[count:] for each in weight.placements):
        return "a weight is not replicated on each rank"
    parts = [1] * first.dim()
    for place, each in enumerate(first.placements):
        if type(each) is Shard and each.dim in rows:
            parts[each.dim] *= first.device_mesh.size(place)
        elif type(each) is not Replicate:
            return f"{inputs[0].name} is placed {each}, and the kernel can only be split along {list(rows)}"
    if any(size % ways for each in tensors[:count] for size, ways in zip(each.shape, parts, strict=False)):
        shape = "" if torch.compiler.is_compiling() else f" of shape {tuple(first.shape)}"
        return f"{inputs[0].name}{shape} cannot be split evenly"
    return ""


def parts(tensors: Sequence[DTensor], count: int) -> Tensors:
    """Return this rank's parts of the first `count` tensors and of weights; gradients flow back."""
    placements = tensors[0].placements
    summed = [Partial() if type(each) is Shard else each for each in placements]
    wanted = [placements] * count + [summed] * (len(tensors) - count)
    found = (each.to_local(grad_placements=grad) for each, grad in zip(tensors, wanted, strict=True))
    return tuple(_Waited.apply(each) if type(each) is AsyncCollectiveTensor else each for each in found)


def whole(made: Any, like: DTensor) -> Any:
    """Return distributed tensors from parts, placed like the input `like`."""
    if isinstance(made, tuple):
        return tuple(whole(each, like) for each in made)
    return DTensor.from_local(made, like.device_mesh, like.placements, run_check=False)


class _Waited(torch.autograd.Function):
    """Wait for a part in transit."""

    @staticmethod
    def forward(ctx: Any, part: AsyncCollectiveTensor) -> torch.Tensor:
        found: torch.Tensor = part.trigger_wait()
        return found.view_as(found)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]
