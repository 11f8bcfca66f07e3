"""Records of an examination, which a package is written from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from kernelwright.kernelbench.records import Record
from kernelwright.results.dropin.runtime.envelope import Argument


class BuiltLibrary(Record):
    """A shared object of C++, or CUDA C++ in a cubin for each chip.

    `files`: of the package's libraries, by what follows the key in their names; `functions`: with (type,
    pointers, dtypes pointed to) of each parameter; `chips`: such as "sm_90", that there is a cubin for.
    """

    key: str
    files: dict[str, Path]
    functions: dict[str, dict[str, Any]]
    chips: tuple[str, ...] = ()


class Examined(Record):
    """Result of an examination. Arguments are in the form of `envelope.Argument.words`."""

    inputs: tuple[dict[str, Any], ...]
    weights: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    rows: tuple[int, ...]  # dimensions along which the reference can be split, see `_rows`
    parameters: tuple[str, ...]  # the weights' names in the reference
    flops: int | str  # of the reference's products
    limits: dict[str, tuple[int, int | None]] = Field(default_factory=dict)  # of free sizes, see `sizes`
    one_size: str = ""  # why a kernel for several sizes is packaged for the first
    differentiated: tuple[str, ...]  # inputs and weights whose gradients are computed, in order
    gradients: tuple[dict[str, Any], ...]  # of `Gradient`
    no_gradient: str  # why there is none
    under_autocast: bool  # whether autocast leaves the reference as it is
    relies_on: tuple[str, ...]  # states of torch without which the kernel's own code goes wrong
    libraries: tuple[BuiltLibrary, ...]
    torch: str
    cpu_flags: tuple[str, ...]
    chip: str  # of the GPU, such as "sm_90"; "" without one


def words(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[dict[str, Any], ...]:
    """Return arguments in the form of `envelope.Argument.words`."""
    pairs = zip(names, tensors, strict=True)
    return tuple(Argument(n, tuple(t.shape), tuple(t.stride()), t.dtype).words() for n, t in pairs)
