"""A referee whose workers have the tests' own GPU."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.evaluator import Limits, Protocol, Referee
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from tests.helpers.gpu.fake_driver import Page, fake_driver

SMALL = 16 << 20  # bytes of inputs, and of outputs, of a block


@contextlib.contextmanager
def gpu_referee(
    folder: Path, cache: Path, memory_bytes: int = 16 << 30, **options: Any
) -> Iterator[tuple[Referee, Page]]:
    """A referee of cuda:0 in the block, with the page on which a test says what the device does."""
    options.setdefault("protocol", Protocol(inputs_bytes=SMALL, outputs_bytes=SMALL))
    options.setdefault("limits", Limits())
    wait = WorkerPool._await_fork_server

    def imported(pool: WorkerPool) -> None:
        wait(pool)
        if "fake_gpu" not in pool._imported:
            pool._imported.append("fake_gpu")
            pool._channel.send_json({"import": ["fake_gpu"]})
            wait(pool)

    with fake_driver(folder, memory_bytes) as page, pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerPool, "_await_fork_server", imported)
        with Referee.start(cache=cache, device="cuda:0", threads=1, **options) as referee:
            yield referee, page
