"""Overhead of a Ray cluster: evaluations of a known cost on simulated nodes, held against the ideal.

    python -m benchmarks cluster

An evaluation is a pause, so that nodes on one machine do not take each other's CPUs. The ideal is that of
nodes which never wait: the number of evaluations times their cost, divided by the nodes. Machine: CPU, quiet,
with Ray. Time: 6 minutes. Writes cpu/cluster.md.
"""

import logging
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from benchmarks.publishing import log, publish
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import EvaluationPool
from kernelwright.kernelbench.machine import fingerprint
from kernelwright.kernelbench.records import (
    Candidate,
    Ceilings,
    Environment,
    Evaluation,
    Stages,
    Target,
    Task,
    Verdict,
)
from kernelwright.kernelbench.remote.cluster import slot
from kernelwright.kernelbench.remote.cluster.evaluator import on_cluster
from kernelwright.kernelbench.remote.cluster.nodes import RESOURCE

_STORE_BYTES = 100 << 20


def run(
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 4,
    count: Annotated[int, typer.Option(help="Number of evaluations.")] = 1000,
    cost: Annotated[float, typer.Option(help="Seconds of each.")] = 1.0,
) -> None:
    tasks = sources.resolve([], suite="builtin:level1")[:20]
    with tempfile.TemporaryDirectory() as folder, _cluster(nodes):
        start = partial(paused_slot, folder=folder, seconds=cost)
        with on_cluster(start, device="cpu", cache=Path(folder), say=log) as evaluator:
            assert len(evaluator.members) == nodes
            with EvaluationPool(evaluator) as pool:
                for one in [pool.submit(tasks[0], _candidate(-number - 1)) for number in range(2 * nodes)]:
                    one.result()
                started = time.monotonic()
                futures = [
                    pool.submit(tasks[number % len(tasks)], _candidate(number)) for number in range(count)
                ]
                found = {future.result().candidate for future in futures}
                took_s = time.monotonic() - started
    assert len(found) == count
    ideal_s = count * cost / nodes
    more = f"{took_s / ideal_s - 1:.1%}"
    log(f"{took_s:.1f} s, ideal {ideal_s:.1f} s: {more} more")
    row = (str(nodes), str(count), f"{cost:g} s", f"{ideal_s:.0f} s", f"{took_s:.1f} s", more)
    columns = ("nodes", "evaluations", "cost of each", "ideal", "time", "more")
    publish("cluster", "Evaluations on a Ray cluster", columns, [row], fingerprint(1))


@contextmanager
def _cluster(nodes: int) -> Iterator[None]:
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False},
    )
    try:
        for _ in range(nodes):
            made.add_node(num_cpus=1, object_store_memory=_STORE_BYTES, resources={RESOURCE: 1})
        ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
        yield
    finally:
        ray.shutdown()
        made.shutdown()


def _candidate(number: int) -> Candidate:
    return Candidate(source=f"# {number}\nclass ModelNew: ...\n", language="cpp", author="benchmark")


@dataclass
class _PausedPool:
    """Pool whose evaluations are pauses, one at a time."""

    seconds: float
    target: Target
    environment: Environment
    slots: int = 1
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def submit(self, task: Task, candidate: Candidate, *_: object) -> Future[Evaluation]:
        return self._threads.submit(self._evaluated, task, candidate)

    def _evaluated(self, task: Task, candidate: Candidate) -> Evaluation:
        time.sleep(self.seconds)
        return Evaluation(
            task=task.id,
            candidate=candidate.sha256,
            target=self.target,
            verdict=Verdict.correct,
            reason="",
            stages=Stages(),
            environment=self.environment,
        )

    def abort(self) -> None:
        pass


@contextmanager
def paused_slot(*, folder: str, seconds: float) -> Iterator[Any]:
    """Start a slot, as if its node were a machine."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    slot._BOOT = Path(folder) / f"boot-{node}"
    slot._BOOT.write_text(node)
    ceilings = Ceilings(copy_bytes_s=1e10, cached_copy_bytes_s=1e10, fp32_flops_s=1e11)
    target = Target(device="cpu", languages=("cpp",), ceilings=ceilings, fingerprint=fingerprint(1))
    environment = Environment(sandbox=(), caches="cold")
    pool = _PausedPool(seconds, target, environment)
    evaluator = SimpleNamespace(target=target, environment=environment, fault=lambda: None)
    yield SimpleNamespace(pool=pool, evaluator=evaluator)
