"""Runs of many tasks with a scripted model over HTTP, and a stand-in for the evaluator."""

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from kernelwright.agent.display.progress import RunProgress
from kernelwright.agent.display.status import RunStatus
from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, RawResponse, Reply
from kernelwright.agent.llm.model import Endpoint
from kernelwright.agent.llm.session import ModelSession
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.run import Run
from kernelwright.kernelbench.evaluator import TimingLock
from kernelwright.kernelbench.options import build
from kernelwright.kernelbench.records import (
    Candidate,
    Environment,
    Evaluation,
    Interval,
    Speedup,
    Stages,
    Task,
    Timing,
    Verdict,
    Work,
)
from kernelwright.kernelbench.speed_of_light import floor_us
from kernelwright.profiling.records import Profile
from kernelwright.profiling.roofline import roofline
from kernelwright.results.store.database import RunDatabase
from tests.helpers.anywhere import TARGET

KERNEL = "from kernelwright import jit\nlib = jit.compile_cpp('')\nclass ModelNew:\n    speedup = {}\n"
ONE_CALL_USD = (100 * 2.0 + 50 * 8.0) / 1e6  # as the server counts, at the price of MODEL
MODEL = "gpt-4.1"


class Pool:
    """Believes what a candidate says of its speedup, after `seconds`; one without any has cheated."""

    def __init__(self, seconds: float = 0.0, eager_shares: Mapping[str, float] | None = None) -> None:
        self.target, self.seconds, self.timing_lock = TARGET, seconds, TimingLock()
        self.evaluated: list[str] = []
        self.eager_shares = eager_shares or {}

    waiting, running = 0, ["file:0"]

    def eager_share(self, task: Task) -> float | None:
        return self.eager_shares.get(task.id)

    def audit(self, task: Task) -> list[str]:
        return []

    def work(self, task: Task) -> Work:
        return Work(input_bytes=1 << 20, weight_bytes=0, output_bytes=1 << 20, flops=0)

    def profile(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, *_: object, **__: object
    ) -> Profile | None:
        return roofline(self.work(task), evaluation.target, evaluation)

    def evaluate(self, task: Task, candidate: Candidate, *_: object) -> Evaluation:
        time.sleep(self.seconds)
        self.evaluated.append(task.id)
        said = re.search(r"speedup = ([\d.]+)", candidate.source)
        if said is None:
            return self._found(task, candidate, Verdict.cheating, "its outputs are those of an earlier call")
        speedup = float(said.group(1))
        found = Interval(median=speedup, low=speedup * 0.99, high=speedup * 1.01)
        took = Interval(median=1e6 / speedup, low=0.99e6 / speedup, high=1.01e6 / speedup)
        floor = floor_us(self.work(task), TARGET.ceilings)
        timing = Timing(candidate_us=took, floor_us=floor, calls_per_block=1, rounds=1)
        return self._found(task, candidate, Verdict.correct, "", timing, Speedup(eager=found))

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return self._found(task, candidate, Verdict.build_error, reason)

    def ask(self, task: Task, do: Any, client: str) -> Future[Any]:
        raise AssertionError("the builtin coder is not asked")

    def abort(self) -> None:
        pass

    def _found(
        self, task: Task, candidate: Candidate, verdict: Verdict, reason: str,
        timing: Timing | None = None, speedup: Speedup | None = None,
    ) -> Evaluation:  # fmt: skip
        tried = verdict is not Verdict.build_error
        return Evaluation(
            task=task.id, candidate=candidate.sha256, target=TARGET, verdict=verdict, reason=reason,
            timing=timing, speedup=speedup, stages=Stages(total_s=1.0 if tried else 0.0),
            environment=Environment(sandbox=()),
        )  # fmt: skip


def says(speedup: float | str) -> str:
    stated = repr(speedup) if isinstance(speedup, str) else speedup
    return f"```python\n{KERNEL.format(stated)}```"


def judged(prompt: str) -> str:
    found = re.search(r"^- bandwidth_share = (\S+)", prompt, re.MULTILINE)
    if found is None:
        return json.dumps({"critical_issue": "i", "why": "w", "minimal_fix": "f"})
    evidence = [{"metric": "bandwidth_share", "value": float(found.group(1))}]
    return json.dumps(
        {"bottleneck": "b", "technique": "vectorize", "method": "m", "plan": "p", "evidence": evidence,
         "predicted_gain": 1.5}
    )  # fmt: skip


class Better:
    """A model whose kernels of a task are faster and faster."""

    def __init__(self, latency_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self.written: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any], number: int) -> Reply | ErrorResponse | RawResponse:
        system, user = (message["content"] for message in body["messages"][:2])
        if "`ModelNew`, which" not in system:
            return Reply(judged(user), latency_s=self.latency_s)
        [task] = re.findall(r"^# The task: (\S+)$", user, re.MULTILINE)
        with self._lock:
            count = self.written[task] = self.written.get(task, 0) + 1
        return Reply(says(count), latency_s=self.latency_s)


class Heard(RunProgress):
    """Keeps what is said."""

    def __init__(self, lines: list[str] | None) -> None:
        self.lines = lines if lines is not None else []
        self.say = self.lines.append  # type: ignore[method-assign]


class Watched(Heard):
    """Keeps what can be watched."""

    status: Callable[[], RunStatus]

    def watch(self, status: Callable[[], RunStatus]) -> None:
        self.status = status


def carried_out(
    database: RunDatabase,
    server: FakeEndpoint,
    tasks: int = 1,
    pool: Pool | None = None,
    at_once: int = 16,
    said: list[str] | None = None,
    progress: RunProgress | None = None,
    **options: Any,
) -> bool:
    for number in range(tasks):
        source = f"class Model:\n    def forward(self, x):\n        return torch.softmax(x, {number})\n"
        database.add_task(Task(id=f"file:{number}", level=1, source=source))
    pool = pool or Pool()
    asked = {
        "coder": "llm",
        "model": MODEL,
        "reply_tokens": 100,
        "language": ("cpp",),
        "seed": "none",
        "tasks_at_once": at_once,
    }
    config = build(RunConfig, asked | options)
    roles = config.model.roles()
    assert roles is not None
    terms = config.terms(Endpoint(base_url=server.base_url, backoff_s=0.01, patience_s=20.0))
    with ModelSession.asking(roles, terms, database, pool.timing_lock) as models:
        return Run(config, database, pool, models, progress=progress or Heard(said)).execute()  # type: ignore[arg-type]
