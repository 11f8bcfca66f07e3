"""Processes of one training, as `torchrun` and `accelerate launch` start them.

The first one has the run's folder, the evaluator, and what is remembered of rewards; the others get from it
what they need. A training in one process is the first of one.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

from kernelwright.kernelbench.errors import KernelwrightError, UsageError

Made = TypeVar("Made")
TIMEOUT_S = 6 * 3600  # that a process waits for the others: the first may have a batch to evaluate


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    return rank() == 0


def wait() -> None:
    """Wait until all processes are here; their group exists by then."""
    if world_size() > 1:
        from accelerate import PartialState  # type: ignore[import-untyped]

        PartialState().wait_for_everyone()


def from_first(make: Callable[[], Made]) -> Made:
    """Return what the first process makes, in all of them. What it refuses raises everywhere."""
    if world_size() == 1:
        return make()
    from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]

    held: list[Any] = [None, None]
    if is_first():
        try:
            held[0] = make()
        except KernelwrightError as error:
            held[1] = error
    broadcast_object_list(held)
    made, refusal = held
    if refusal is not None:
        raise refusal
    return made


def concatenated(own: list[Made]) -> list[Made]:
    """Return the lists of all processes, one after the other."""
    if world_size() == 1:
        return own
    from accelerate.utils import gather_object

    return list(gather_object(own))


def share_of(batch: int, micro_batch: int) -> int:
    """Return the number of micro-batches that each process computes of a batch. Raises UsageError."""
    together = micro_batch * world_size()
    if batch % together:
        raise UsageError(
            f"a batch of {batch} is not a multiple of {world_size()} processes with micro-batches of "
            f"{micro_batch}",
            f"use --batch-size {-(-batch // together) * together}, or another number of processes",
        )
    return batch // together
