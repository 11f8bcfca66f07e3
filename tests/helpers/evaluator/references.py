"""References in one line each, for tests of the oracle in this process."""

import contextlib
import textwrap
from collections.abc import Callable
from pathlib import Path

import torch

from kernelwright.kernelbench.evaluator.correctness.oracle import Oracle

TEMPLATE = """
import dataclasses
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

{before}

class Model(nn.Module):
    def __init__(self{arguments}):
        super().__init__()
{init}

    def forward(self{inputs}):
{forward}

def get_inputs():
    return {draw}

def get_init_inputs():
    return {given}
"""


def task(
    forward: str,
    *,
    init: str = "pass",
    draw: str = "[torch.randn(64, 128)]",
    inputs: str = ", x",
    arguments: str = "",
    given: str = "[]",
    before: str = "",
) -> str:
    """The source of a task; `forward` and `init` are the bodies of these."""
    return TEMPLATE.format(
        before=textwrap.dedent(before),
        arguments=arguments,
        init=textwrap.indent(textwrap.dedent(init), " " * 8),
        inputs=inputs,
        forward=textwrap.indent(textwrap.dedent(forward), " " * 8),
        draw=draw,
        given=given,
    )


def oracle(source: str, folder: Path, precision: str = "task", vary: bool = True) -> Oracle:
    """The oracle of a task, its first inputs in slot 0. The task's file is written to `folder`."""
    with contextlib.chdir(folder), torch.no_grad():
        made = Oracle(source, precision, 7, vary)
        made.slots, made._families = [[tensor.clone() for tensor in made.reference.first]], {0: "task"}
    return made


def error(made: Oracle, candidate: Callable[..., torch.Tensor], seed: int | None = None) -> float:
    """Of what `candidate` gives for the inputs in slot 0, in error budgets."""
    from kernelwright.kernelbench.evaluator.correctness.comparison import compare

    with torch.no_grad():
        made.expect(0, seed, False)
        if seed is not None:
            torch.manual_seed(seed)
        found = candidate(*[tensor.clone() for tensor in made.slots[0]])
        return compare(made.expected.budgets[0], found).error
