"""Nodes of a Ray cluster on this machine, and evaluators in them whose evaluations have a known cost.

A candidate says by its source what becomes of it: "wrong", "kills" (its process, each time it is evaluated),
"kills once"; all others are right. Each evaluation writes a line when it begins and one when it ends.
"""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import (
    CHECKED,
    Candidate,
    Environment,
    Evaluation,
    Target,
    Task,
    Verdict,
    Work,
)
from kernelwright.kernelbench.remote.cluster import slot
from kernelwright.kernelbench.remote.cluster.nodes import RESOURCE
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import WORK

STORE_BYTES = 80 << 20
ROOT = Path(__file__).parents[3]  # of `tests`, which actors import


@contextmanager
def cluster(timed: int, builders: int = 0) -> Iterator[Any]:
    """Yield a cluster of a head without CPUs, and nodes with one each; this process is attached to it."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("RAY_raylet_start_wait_time_s", "300")  # Ray's own limits are short for a busy machine
        patch.setenv("RAY_agent_register_timeout_ms", "300000")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            for number in range(timed + builders):
                add_node(made, timed=number < timed)
            ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
            from kernelwright.kernelbench.remote.cluster.nodes import _quieten

            _quieten()
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def add_node(cluster: Any, timed: bool = True) -> Any:
    offered = {RESOURCE: 1} if timed else {}
    return cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, resources=offered)


@dataclass
class CostlyPool:
    """Evaluates one candidate at a time, for `seconds` each, and says so in a file."""

    folder: Path
    seconds: float
    target: Target
    slots: int = 1
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _stopped: threading.Event = field(default_factory=threading.Event)

    def submit(self, task: Task, candidate: Candidate, measurement: Measurement = Measurement(), client: str = "") -> Future[Evaluation]:  # fmt: skip
        return self._threads.submit(self._evaluated, task, candidate, measurement)

    def _evaluated(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation:
        self._log("begun" if measurement.timed else "checked", candidate)
        mark = self.folder / f"killed-{candidate.sha256}"
        if "kills" in candidate.source and not ("once" in candidate.source and mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self._stopped.wait(self.seconds)
        if "wrong" in candidate.source:
            found = run_factory.evaluation(task, candidate, Verdict.wrong_output, reason="it is wrong")
        elif not measurement.timed:
            (self.builds_of(candidate.sha256) / "kernel.so").write_text(f"built by {os.getpid()}")
            found = run_factory.evaluation(task, candidate, Verdict.unmeasured, reason=CHECKED)
        else:
            found = run_factory.evaluation(task, candidate, eager=1.5)
        self._log("ended", candidate) if measurement.timed else None
        return found.model_copy(update={"target": self.target})

    def _log(self, what: str, candidate: Candidate) -> None:
        had = [path.read_text() for path in self.builds_of(candidate.sha256).iterdir()]
        line = json.dumps([what, candidate.sha256, os.getpid(), had]) + "\n"
        descriptor = os.open(self.folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())  # whole, whoever else writes
        os.close(descriptor)

    def builds_of(self, candidate: str) -> Path:
        folder = self.folder / f"builds-{os.getpid()}" / candidate
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def work(self, task: Task) -> Work:
        return WORK

    def abort(self) -> None:
        self._stopped.set()


@dataclass
class CostlySlot:
    """`SlotPool` of a `CostlyPool`."""

    pool: CostlyPool
    environment: Environment = run_factory.ENVIRONMENT

    @cached_property
    def evaluator(self) -> Any:
        return SimpleNamespace(
            target=self.pool.target,
            environment=self.environment,
            sessions=SimpleNamespace(pool=self.pool),
            fault=lambda: None,
        )

    def profile(self, *_: object) -> None:
        return None


@contextmanager
def costly_slot(
    *, folder: Path, seconds: float = 0.02, chips: dict[str, str] | None = None, **_: object
) -> Iterator[Any]:
    """Start a slot. `chips`: of nodes, by Ray's id, that have another. The rest is what commands ask for."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    slot._BOOT = folder / f"boot-{node}"  # as if each node were a machine
    slot._BOOT.write_text(node)
    target = run_factory.TARGET
    if chip := (chips or {}).get(node):
        mark = target.fingerprint.model_copy(update={"chip": chip})
        target = target.model_copy(update={"fingerprint": mark})
    yield CostlySlot(CostlyPool(folder, seconds, target))


def logged(folder: Path, what: str) -> list[list[Any]]:
    """Lines of the evaluations that have begun, ended or been checked: (what, sha256, pid, builds it had)."""
    if not (folder / "log").exists():
        return []
    lines = map(json.loads, (folder / "log").read_text().splitlines())
    return [line for line in lines if line[0] == what]


def wait_for(condition: Any, within_s: float = 120.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "it has not come about"
        time.sleep(0.05)
