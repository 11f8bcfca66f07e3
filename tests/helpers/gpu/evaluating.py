"""Evaluators and worker pools that have the tests' own GPUs."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelwright import cli
from kernelwright.kernelbench import without_gpu
from kernelwright.kernelbench.evaluator import Limits, LocalEvaluator, Protocol, Referee, referee
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from tests.helpers.gpu.fake_driver import Page, fake_driver

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
CANDIDATE = TASK.replace("class Model(", "class ModelNew(")
SMALL = 16 << 20  # bytes of inputs, and of outputs, of a block


@contextlib.contextmanager
def fake_gpu(
    folder: Path, memory_bytes: int = 4 << 30, devices: int = 1, modules: Sequence[str] = ("fake_gpu",)
) -> Iterator[Page]:
    """Have pools whose device is a GPU use the tests' own in the block; the page says what these do.

    `modules`: of `folder`, imported by the fork server before there are workers.
    """
    wait = WorkerPool._await_fork_server

    def imported(pool: WorkerPool) -> None:
        wait(pool)
        if pool.device != "cpu" and modules[0] not in pool._imported:
            pool._imported += modules
            pool._channel.send_json({"import": list(modules)})
            wait(pool)

    with fake_driver(folder, memory_bytes, devices) as page, pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerPool, "_await_fork_server", imported)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        # A probe of the device is a call of torch here: of one thread, it waits for no other.
        for module in (referee, without_gpu):
            patch.setattr(module, "physical_threads", lambda: 1)
        yield page


@contextlib.contextmanager
def gpu_referee(
    folder: Path, cache: Path, memory_bytes: int = 16 << 30, **options: Any
) -> Iterator[tuple[Referee, Page]]:
    """A referee of cuda:0 in the block, with the page on which a test says what the device does."""
    options.setdefault("protocol", Protocol(inputs_bytes=SMALL, outputs_bytes=SMALL))
    options.setdefault("limits", Limits())
    with (
        fake_gpu(folder, memory_bytes) as page,
        Referee.start(cache=cache, device="cuda:0", **options) as made,
    ):
        yield made, page


@contextlib.contextmanager
def evaluator_of(
    devices: int, folder: Path, memory_bytes: int = 64 << 30, **options: Any
) -> Iterator[tuple[LocalEvaluator, Page]]:
    """An evaluator of several devices in the block, with the page of these."""
    options.setdefault("protocol", Protocol(inputs_bytes=SMALL, outputs_bytes=SMALL))
    names = [f"cuda:{number}" for number in range(devices)]
    with (
        fake_gpu(folder, memory_bytes, devices) as page,
        without_gpu.start_evaluator(cache=folder / "cache", devices=names, **options) as evaluator,
    ):
        yield evaluator, page


def command(*words: str) -> int:
    """Run a command of kernelwright in this process, where a fake GPU may be; return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["kernelwright", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return int(ended.value.code or 0)
