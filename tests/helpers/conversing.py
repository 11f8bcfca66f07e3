"""A run of the agent search with a scripted endpoint; its pool believes what a file says of itself.

python -m tests.helpers.conversing FOLDER BASE_URL   # a process that a test can kill
"""

import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from kernelwright.agent.display.progress import RunProgress
from kernelwright.agent.llm.model import Endpoint
from kernelwright.agent.llm.session import ModelSession
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.run import Run
from kernelwright.kernelbench.evaluator import Measurement, TimingLock
from kernelwright.kernelbench.options import build
from kernelwright.kernelbench.records import (
    CHECKED,
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
from kernelwright.results.store.database import NoRunError, RunDatabase
from tests.helpers.anywhere import TARGET

MODEL = "gpt-4.1"
TASK = Task(
    id="file:0", level=1, source="class Model:\n    def forward(self, x):\n        return x.softmax(0)\n"
)


def file(says: float | str) -> str:
    """A file with this speedup; a word is what is wrong with it."""
    told = f"speedup = {says}" if isinstance(says, float | int) else f"wrong = '{says}'"
    return f"from kernelwright import jit\n\nlib = jit.compile_cpp('')\n\n\nclass ModelNew:\n    {told}\n"


class Pool:
    """Believes a file, after `seconds`, and writes into `log` what it has evaluated."""

    slots = 1

    def __init__(self, seconds: float = 0.0, log: Path | None = None) -> None:
        self.target, self.seconds, self.timing_lock, self.log = TARGET, seconds, TimingLock(), log
        self.evaluated: list[str] = []
        self.under_way = self.most_under_way = 0
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        return 0

    @property
    def running(self) -> list[str]:
        return [TASK.id] * self.under_way

    def eager_share(self, task: Task) -> float | None:
        return None

    def audit(self, task: Task) -> list[str]:
        return []

    def work(self, task: Task) -> Work:
        return Work(input_bytes=1 << 20, weight_bytes=0, output_bytes=1 << 20, flops=0)

    def profile(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, *_: object, **__: object
    ) -> Profile | None:
        return roofline(self.work(task), evaluation.target, evaluation)

    def evaluate(
        self, task: Task, candidate: Candidate, measurement: Measurement = Measurement()
    ) -> Evaluation:
        with self._lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        time.sleep(self.seconds)
        said = candidate.source.splitlines()[-1].strip()
        how = "check" if not measurement.timed else "measure" if measurement.effort else "confirm"
        with self._lock:
            self.under_way -= 1
            self.evaluated.append(f"{how} {said}")
            if self.log is not None:
                with self.log.open("a") as log:
                    log.write(f"{how} {said}\n")
        number = re.fullmatch(r"speedup = ([\d.]+)", said)
        if number is None:
            return self._found(task, candidate, Verdict.wrong_output, said.partition("'")[2].rstrip("'"))
        if not measurement.timed:
            return self._found(task, candidate, Verdict.unmeasured, f"{CHECKED}: 8 inputs")
        speedup = float(number[1])
        found = Interval(median=speedup, low=speedup * 0.99, high=speedup * 1.01)
        took = Interval(median=1e6 / speedup, low=0.99e6 / speedup, high=1.01e6 / speedup)
        floor = floor_us(self.work(task), TARGET.ceilings)
        timing = Timing(candidate_us=took, floor_us=floor, calls_per_block=1, rounds=1)
        return self._found(task, candidate, Verdict.correct, "", timing, Speedup(eager=found))

    def ask(self, task: Task, do: Callable[[Any], Any], client: str) -> Future[Any]:
        answer: Future[str] = Future()
        answer.set_result("the kernels of the compiler")
        return answer

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        raise AssertionError("a file that is no candidate is no attempt")

    def abort(self) -> None:
        pass

    def _found(
        self, task: Task, candidate: Candidate, verdict: Verdict, reason: str,
        timing: Timing | None = None, speedup: Speedup | None = None,
    ) -> Evaluation:  # fmt: skip
        return Evaluation(
            task=task.id, candidate=candidate.sha256, target=TARGET, verdict=verdict, reason=reason,
            timing=timing, speedup=speedup, stages=Stages(total_s=1.0), environment=Environment(sandbox=()),
        )  # fmt: skip


def execute(
    database: RunDatabase,
    base_url: str,
    pool: Pool,
    seed: str = "",
    progress: RunProgress | None = None,
    **options: Any,
) -> bool:
    """Run the task, or go on with it, with this file as a seed; whether it could be done."""
    database.add_task(TASK)
    asked = {
        "coder": "llm", "model": MODEL, "reply_tokens": 100, "language": ("cpp",), "search": "agent", "rounds": 9, "seed": "seed.py" if seed else "none"
    }  # fmt: skip
    config = build(RunConfig, asked | options)
    config = config.model_copy(update={"model": config.model.model_copy(update={"seed_source": seed})})
    roles = config.model.roles()
    assert roles is not None
    terms = config.terms(Endpoint(base_url=base_url, backoff_s=0.01, patience_s=20.0))
    with ModelSession.asking(roles, terms, database, pool.timing_lock) as models:
        return Run(config, database, pool, models, progress=progress or RunProgress()).execute()  # type: ignore[arg-type]


def opened(folder: Path) -> RunDatabase:
    """The run in a folder, new or begun."""
    try:
        return RunDatabase.open(folder / "run.db")
    except NoRunError:
        return RunDatabase.create(folder / "run.db", settings={}, target=TARGET)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with opened(folder) as run:
        execute(run, sys.argv[2], Pool(0.2, folder / "evaluated"))
