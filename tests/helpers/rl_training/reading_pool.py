"""Online training of a tiny policy over a pool that answers by the text of a reply."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.trainers.collapse import HealthLimits
from kernelwright.rl_training.trainers.online_run import Finished, train
from kernelwright.rl_training.trainers.policy import load_policy
from kernelwright.rl_training.trainers.precision import of_weights
from kernelwright.rl_training.trainers.settings import OnlineSettings
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import WORK, builtin_task

TASKS = [
    TaskData(task=builtin_task(name), language="cpp", target=run_factory.TARGET, work=WORK)
    for name in ("level1/relu", "level1/softmax")
]


@dataclass
class ReadingPool:
    """The more of a reply is the letter e, the faster it is; what has none is wrong, or brings no verdict."""

    silent: bool = False
    seen: list[str] = field(default_factory=list)

    def submit(self, task: Task, candidate: Candidate, measurement: Measurement = Measurement(), client: str = "") -> Future[Evaluation]:  # fmt: skip
        raise AssertionError("replies of a tiny model hold no file")

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        self.seen.append(candidate.source)
        share = candidate.source.count("e") / max(1, len(candidate.source))
        if self.silent:
            return run_factory.evaluation(task, candidate, Verdict.correct)  # without a time
        if share == 0:
            return run_factory.evaluation(task, candidate, Verdict.wrong_output, reason="no e")
        return run_factory.evaluation(task, candidate, eager=1 + share)

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> None:
        return None


class Paying(ReadingPool):
    """Pays the n-th reply for a speedup of `of(n)`: 0 is wrong, None brings no verdict."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of

    def submit(self, task: Task, candidate: Candidate, *_: Any, **__: Any) -> Future[Evaluation]:
        found: Future[Evaluation] = Future()
        found.set_result(self.rejected(task, candidate, ""))
        return found

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        speedup = self.of(len(self.seen))
        self.seen.append(candidate.source)
        if speedup is None:
            return run_factory.evaluation(task, candidate, Verdict.correct)  # without a time
        if speedup == 0:
            return run_factory.evaluation(task, candidate, Verdict.wrong_output)
        return run_factory.evaluation(task, candidate, eager=speedup)


def settings(model: Path, **changed: object) -> OnlineSettings:
    plain = {
        "model": str(model), "steps": 4, "learning_rate": 1e-2, "batch": 8, "micro_batch": 8, "group": 4,
        "max_completion": 12, "cpu": True, "save_every": 2,
    }  # fmt: skip
    return OnlineSettings.model_validate(plain | changed)


def run(
    chosen: OnlineSettings,
    out: Path,
    pool: ReadingPool | None = None,
    callbacks: Sequence[object] = (),
    limits: HealthLimits | None = None,
) -> Finished:
    grader = Grader(pool or ReadingPool(), SCHEMES["log-speedup"])
    return train(
        lambda: load_policy(chosen.model, chosen.lora, of_weights(chosen.precision)),
        lambda: TrainingEnvironment({data.task.id: data for data in TASKS}, grader, chosen.turns),
        TASKS,
        chosen,
        out,
        callbacks,
        limits,
    )
