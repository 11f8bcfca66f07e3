"""What tests of drop-in packages share: winners of runs, layers of models, and Python without kernelwright."""

from pathlib import Path

from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.results.dropin.winner import Winner
from tests.helpers.dropin import small_kernels as kernels
from tests.helpers.results import run_factory
from tests.helpers.warm_python import warm_python

LAYERS = """
import copy
import logging

import pytest
import torch
from torch import nn

import fused


class Norm(nn.Module):
    def __init__(self, width=64, eps=1e-6):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))
        self.eps = eps

    def forward(self, hidden):
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps) * self.scale


class Block(nn.Module):
    def __init__(self, width=64, eps=1e-6):
        super().__init__()
        self.norm = Norm(width, eps)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + self.linear(self.norm(x))


def model(*blocks):
    return nn.Sequential(*blocks)
"""


def winner(source: str, kernel: str, name: str) -> Winner:
    task = Task(id=f"file:{name}", level=1, source=source)
    candidate = Candidate(source=kernel, language="cpp", author="test")
    return Winner(
        task=task,
        candidate=candidate,
        evaluation=run_factory.evaluation(task, candidate, eager=2.0),
        command="kernelwright run",
        kernelwright="0",
        environment=None,
    )


NORM = winner(kernels.RMS_NORM, kernels.RMS_NORM_KERNEL, "rms_norm")
SIGMOIDS = winner(kernels.SIGMOIDS, kernels.SIGMOIDS_KERNEL, "sigmoids")


def python(folder: Path, *words: str) -> str:
    """Run a script over a package; returns what it printed."""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder), "HOME": str(folder.parent)}
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # others import torch first, for few files
    done = warm_python(words, folder, env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
