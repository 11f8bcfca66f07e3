"""A server of evaluations over a pool that answers by what a file says, here or in a process of its own.

`python -m tests.helpers.rl_training.served PORT DATABASE [SECONDS]` serves until it is killed; each evaluation
takes SECONDS and is written to DATABASE.log as it is begun.
"""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.evaluator import Measurement, Protocol
from kernelwright.kernelbench.records import Candidate, Evaluation, Target, Task, Verdict, Work
from kernelwright.kernelbench.remote.wire import ServerInfo
from kernelwright.kernelbench.version import kernelwright_version
from kernelwright.profiling.records import Profile
from kernelwright.rl_training.serving.evaluator.app import Service
from kernelwright.rl_training.serving.evaluator.grading import RequestGrader
from kernelwright.rl_training.serving.evaluator.ledger import Ledger
from kernelwright.rl_training.serving.evaluator.metrics import ServerMetrics
from kernelwright.rl_training.serving.evaluator.queue import EvaluationQueue
from kernelwright.rl_training.serving.evaluator.rollouts import Rollouts
from kernelwright.rl_training.serving.evaluator.server import listening, serve
from kernelwright.rl_training.serving.evaluator.tasks import TaskCatalogue
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import PROFILE, WORK, builtin_task, kernel

TASK = "builtin:level1/relu"
TASKS = ("level1/relu", "level1/softmax")


def file(speedup: float, mark: object = "") -> str:
    """A C++ candidate that the pool finds so fast."""
    return kernel(f"x[i] > 0 ? x[i] : 0 /* speedup={speedup} {mark} */")


@dataclass
class FilePool:
    """Evaluates by what a file says; `deaths`: the share of evaluations that the machinery fails.

    `counts`: how often each file was evaluated to the end.
    """

    seconds: float = 0.0
    deaths: float = 0.0
    log: Path | None = None
    counts: Counter[str] = field(default_factory=Counter)
    died: int = 0
    gate: threading.Event | None = None  # that evaluations wait for
    kernels_only: bool = False  # whether a file that no speedup is named in is wrong
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _draws: random.Random = field(default_factory=lambda: random.Random(1))

    def submit(self, task: Task, candidate: Candidate, measurement: Measurement = Measurement(), client: str = "") -> Future[Evaluation]:  # fmt: skip
        found: Future[Evaluation] = Future()
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{candidate.sha256}\n")
        if self.gate is not None:
            self.gate.wait()
        time.sleep(self.seconds)
        with self._lock:
            dies = self._draws.random() < self.deaths
            self.died += dies
            if not dies:
                self.counts[candidate.sha256] += 1
        if dies:
            found.set_exception(InfrastructureError("a worker died", "ask again"))
            return found
        try:
            found.set_result(self._evaluated(task, candidate, measurement))
        except (TaskError, InfrastructureError) as error:
            found.set_exception(error)
        return found

    def _evaluated(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation:
        if "dies" in candidate.source:
            raise InfrastructureError("a worker died", "ask again")
        if "no task" in candidate.source:
            raise TaskError("the reference fails", "correct it")
        if "wrong" in candidate.source:
            return run_factory.evaluation(task, candidate, Verdict.wrong_output, reason="it is wrong")
        if "cheats" in candidate.source:
            return run_factory.evaluation(task, candidate, Verdict.cheating, reason="it keeps its outputs")
        if self.kernels_only and "speedup=" not in candidate.source:
            return run_factory.evaluation(
                task, candidate, Verdict.wrong_output, reason="no kernel of its own"
            )
        speedup = float(candidate.source.partition("speedup=")[2].partition(" ")[0] or 1.0)
        return run_factory.evaluation(task, candidate, eager=speedup, compile=speedup)

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return run_factory.evaluation(task, candidate, Verdict.build_error, reason=reason)

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation, known: Profile | None = None, *, closely: bool = False) -> Profile | None:  # fmt: skip
        return PROFILE if evaluation.timing is not None else None

    def work(self, task: Task) -> Work:
        return WORK


@contextmanager
def service(
    database: Path,
    pool: FilePool | None = None,
    *,
    target: Target = run_factory.TARGET,
    any_source: bool = True,
    tokens: Sequence[str] = (),
    workers: int = 4,
    capacity: int = 100,
    version: str | None = None,
) -> Iterator[Service]:
    """A service over a pool, without HTTP."""
    pool = pool or FilePool()
    ledger = Ledger(database)
    info = ServerInfo(
        version=version or kernelwright_version(),
        target=target,
        environment=run_factory.ENVIRONMENT,
        protocol=Protocol(),
        slots=workers,
        queue=capacity,
    )
    tasks = TaskCatalogue([builtin_task(name) for name in TASKS], any_source)
    grader, metrics = RequestGrader(pool, info, tasks, patience_s=30), ServerMetrics()
    queue = EvaluationQueue(ledger, grader, workers, capacity, metrics.observe)
    try:
        yield Service(info, queue, grader, metrics, Rollouts(ledger, queue, grader), tuple(tokens))
    finally:
        if pool.gate is not None:
            pool.gate.set()
        queue.close()
        ledger.close()


@contextmanager
def served(database: Path, pool: FilePool | None = None, port: int = 0, **options: Any) -> Iterator[str]:
    """A server over HTTP, in a thread, at the address that is yielded."""
    import uvicorn

    from kernelwright.rl_training.serving.evaluator.app import application

    with service(database, pool, **options) as made, listening("127.0.0.1", port) as (socket, address):
        server = uvicorn.Server(
            uvicorn.Config(application(made), log_level="error", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        try:
            yield address
        finally:
            server.should_exit = True
            if made.grader.pool.gate is not None:  # type: ignore[attr-defined]
                made.grader.pool.gate.set()  # type: ignore[attr-defined]
            thread.join(60)
            assert not thread.is_alive(), "the server does not end"


@contextmanager
def process(database: Path, port: int, seconds: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own, killed at the end."""
    words = [sys.executable, "-m", __name__, str(port), str(database), str(seconds)]
    found = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert found.stdout is not None and found.stdout.readline() == "ready\n"
    try:
        yield found
    finally:
        found.kill()
        found.wait()


def main(port: str, database: str, seconds: str = "0") -> None:
    path = Path(database)
    pool = FilePool(seconds=float(seconds), log=path.with_suffix(".log"))
    with service(path, pool, capacity=10_000) as made, listening("127.0.0.1", int(port)) as (socket, _):
        print("ready", flush=True)
        serve(made, socket)


if __name__ == "__main__":
    main(*sys.argv[1:])
