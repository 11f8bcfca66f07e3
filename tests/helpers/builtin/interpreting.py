"""What a process with TRITON_INTERPRET=1 does for the tests of Triton kernels: Triton reads it when it is imported."""

import functools
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from kernelwright.kernelbench.emulate import small_floats
from kernelwright.kernelbench.records import Candidate
from tests.helpers.builtin.proving import assert_right, load, models
from tests.helpers.builtin.random_graphs import within_what_rounding_explains

_modules: dict[str, ModuleType] = {}


def check(text: str, candidate: Candidate, loosely: bool = False) -> None:
    """Raises AssertionError where the candidate is not as exact as the reference."""
    with_small_floats()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        hold = within_what_rounding_explains if loosely else assert_right
        hold(*models(text, candidate, Path(folder)))


@functools.cache
def with_small_floats() -> None:
    """Have the interpreter multiply bfloat16, as evaluations have it."""
    from triton.runtime import interpreter

    small_floats.patch(interpreter)


def applied(name: str, x: np.ndarray, *arguments: Any) -> np.ndarray:
    """A function of `functions.py` on an array."""
    if name not in _modules:
        given = "".join(f", argument_{n}" for n in range(len(arguments)))
        text = (
            "import triton\nimport triton.language as tl\n"
            f"from kernelwright.agent.builtin.codegen.triton.functions import {name}\n\n@triton.jit\n"
            f"def kernel(x_ptr, y_ptr, SIZE: tl.constexpr{given}):\n    i = tl.arange(0, SIZE)\n"
            f"    tl.store(y_ptr + i, {name}(tl.load(x_ptr + i){given}))\n"
        )
        _modules[name] = load(text, Path(tempfile.mkdtemp()))
    size = 1 << (len(x) - 1).bit_length()
    padded = torch.ones(size, dtype=torch.from_numpy(x).dtype)
    padded[: len(x)] = torch.from_numpy(x)
    y = torch.empty_like(padded)
    _modules[name].kernel[(1,)](padded, y, size, *arguments)
    return y[: len(x)].numpy()
