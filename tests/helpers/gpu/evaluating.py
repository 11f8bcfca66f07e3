"""Evaluators whose workers have the tests' own GPUs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.evaluator import Limits, LocalEvaluator, Protocol, Referee
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.without_gpu import start_evaluator
from tests.helpers.gpu.fake_driver import Page, fake_driver

SMALL = 16 << 20  # bytes of inputs, and of outputs, of a block


@contextlib.contextmanager
def fake_gpus(folder: Path, memory_bytes: int = 4 << 30, devices: int = 1) -> Iterator[Page]:
    """Have the workers of evaluators see the tests' own GPUs, in the block."""
    wait = WorkerPool._await_fork_server

    def imported(pool: WorkerPool) -> None:
        wait(pool)
        if pool.device != "cpu" and "fake_gpu" not in pool._imported:
            pool._imported.append("fake_gpu")
            pool._channel.send_json({"import": ["fake_gpu"]})
            wait(pool)

    with fake_driver(folder, memory_bytes, devices) as page, pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerPool, "_await_fork_server", imported)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield page


@contextlib.contextmanager
def gpu_referee(
    folder: Path, cache: Path, memory_bytes: int = 4 << 30, **options: Any
) -> Iterator[tuple[Referee, Page]]:
    """A referee of cuda:0 in the block, with the page on which a test says what the device does."""
    options.setdefault("protocol", Protocol(inputs_bytes=SMALL, outputs_bytes=SMALL))
    options.setdefault("limits", Limits())
    with (
        fake_gpus(folder, memory_bytes) as page,
        Referee.start(cache=cache, device="cuda:0", threads=1, **options) as referee,
    ):
        yield referee, page


@contextlib.contextmanager
def evaluator_of(
    devices: int, folder: Path, memory_bytes: int = 64 << 30, **options: Any
) -> Iterator[tuple[LocalEvaluator, Page]]:
    """An evaluator of several devices in the block, with the page of these."""
    options.setdefault("protocol", Protocol(inputs_bytes=SMALL, outputs_bytes=SMALL))
    names = [f"cuda:{number}" for number in range(devices)]
    with (
        fake_gpus(folder, memory_bytes, devices) as page,
        start_evaluator(cache=folder / "cache", devices=names, **options) as evaluator,
    ):
        yield evaluator, page
