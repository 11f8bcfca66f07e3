"""Compilers of a baseline run beside one another, but never while something is timed."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.evaluator import Limits, Referee
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.sandbox import process_tree
from kernelwright.kernelbench.evaluator.session import COMPILER
from tests.helpers.evaluator.trial import task_of
from tests.helpers.pretended import Machine, pretend

pytestmark = pytest.mark.builds

# Products between them keep its reductions apart: Inductor makes a C++ file of each.
SEVERAL_KERNELS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64, 64))

    def forward(self, x):
        for step in range(6):
            x = torch.softmax(x @ self.weight, -1) * (step + 1)
            x = torch.nn.functional.gelu(x) - x.mean(-1, keepdim=True)
        return x

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("cpus", "of_them", "memory_gib", "compilers"),
    [
        (1, 0, 16, 1),
        (2, 0, 16, 1),
        (3, 0, 16, 1),
        (8, 0, 64, 6),
        (8, 4, 64, 2),
        (8, 0, 2, 3),
        (224, 0, 512, 16),
    ],
)
def test_compilers_leave_two_cpus_and_fit_into_memory(
    cpus: int,
    of_them: int,
    memory_gib: float,
    compilers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(Machine(cpus=cpus, memory_gib=memory_gib), tmp_path / "machine", monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("os.sched_setaffinity", lambda *_: None)
        with WorkerPool(threads=1, cache=tmp_path / "cache", limits=Limits(), cpus=range(of_them)) as pool:
            assert pool.compile_workers == compilers


@pytest.mark.slow
def test_inductor_s_pool_is_a_worker_s_own_and_ends_with_its_block(tmp_path: Path) -> None:
    with WorkerPool(threads=1, cache=tmp_path, limits=Limits()) as pool:
        # In the fork server, which asserts that it has one thread.
        pool.import_first([*COMPILER, "tests.helpers.evaluator.compile_pool"])
        for role in ("baseline", "builder"):
            with pool.start(role, "tests.helpers.evaluator.compile_pool:serve") as worker:
                said = worker.ask({"do": "", "compilers": 3}, 300)
                assert said["of_pool"] > said["own"], role
                assert len(process_tree.tree(worker.init_pid)) == 2  # its init, and itself


def compilers_of(worker: Worker) -> list[int]:
    """Compilers proper below a worker, which g++ starts."""
    found = []
    for pid in process_tree.tree(worker.init_pid):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:  # it has ended meanwhile
            continue
        if name == "cc1plus":
            found.append(pid)
    return found


@pytest.mark.slow
def test_they_run_side_by_side_and_stand_still_while_a_block_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(Machine(cpus=8, memory_gib=64), tmp_path / "machine", monkeypatch)
    workers: list[Worker] = []
    start = WorkerPool.start

    def noted(pool: WorkerPool, *arguments: Any, **options: Any) -> Worker:
        workers.append(start(pool, *arguments, **options))
        return workers[-1]

    monkeypatch.setattr(WorkerPool, "start", noted)
    most = 0
    with Referee.start(cache=tmp_path / "cache", threads=1) as referee:
        sessions, found = referee.sessions, []
        session = sessions.open(task_of(SEVERAL_KERNELS))

        def compile_baseline() -> None:
            with sessions.computing():
                found.append(session.baseline("compile"))

        thread = threading.Thread(target=compile_baseline)
        thread.start()
        while thread.is_alive() and most < 2:
            most = max(most, len(compilers_of(workers[-1])))
            time.sleep(0.002)
        with sessions.pool.timing_lock.exclusive():
            running = process_tree.tree(workers[-1].init_pid)
            before = process_tree.cpu_ns(running)
            time.sleep(0.5)
            assert process_tree.cpu_ns(running) == before and len(before) == len(running)
            assert len(running) > 3 and thread.is_alive()
        thread.join(150)
        assert not session.failed_baselines and found[0] is workers[-1]
        assert most > 1
        assert len(process_tree.tree(workers[-1].init_pid)) == 2  # its init, and itself
