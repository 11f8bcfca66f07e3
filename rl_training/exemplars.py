"""Contrastive prompts (CUDA-L1, arXiv:2507.14111): kernels of the task with their speedups, for comparison.

Exemplars come from run databases and, during training, from the policy's own files. They are kept in buckets
of similar speedups; N distinct buckets are drawn, each with probability proportional to exp((mean - mu) /
tau), where mu is the mean over all buckets, and one exemplar uniformly from each. So a prompt holds kernels
that differ in speed, the faster ones more often.
"""

import math
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kernelwright.kernelbench.records import Candidate, Record, Speedup, Verdict
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import RecordedAttempt
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.outcome import Outcome, counting
from kernelwright.rl_training.rewards import state_io
from kernelwright.rl_training.templating import template
from kernelwright.rl_training.trajectory import Turn

BUCKET = 1.2  # the factor between the bounds of a bucket
TEMPERATURE = 1.0
SHOWN = 2


class Exemplar(Record):
    candidate: str  # sha256
    source: str
    speedup: float  # over eager, the lower bound

    @property
    def bucket(self) -> int:
        return math.floor(math.log(self.speedup) / math.log(BUCKET))


class _StoredExemplars(Record):
    version: int
    exemplars: dict[str, tuple[Exemplar, ...]]  # by task


@dataclass
class ExemplarStore:
    """Thread-safe store of correct kernels of each task. `version` counts additions."""

    version: int = 0
    _exemplars: dict[str, dict[str, Exemplar]] = field(default_factory=dict)  # task id -> sha256 -> exemplar
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, task: str, candidate: Candidate, outcome: Outcome) -> bool:
        """Add a candidate if it is correct and timed. Of two measurements the lower one counts."""
        low = outcome.low("eager")
        own = candidate.language != "torch" and not outcome.decoy()
        if outcome.kind != "correct" or not own or low is None or low <= 0:
            return False
        with self._lock:
            known = self._exemplars.setdefault(task, {})
            before = known.get(candidate.sha256)
            if before is not None and before.speedup <= low:
                return False
            known[candidate.sha256] = Exemplar(
                candidate=candidate.sha256, source=candidate.source, speedup=low
            )
            self.version += 1
            return True

    def begin(self, data: TaskData) -> None:
        """Add the winner of a task, if it has one."""
        if data.winner is not None:
            right = Outcome(verdict=Verdict.correct, speedup=Speedup(eager=data.winner.speedup))
            self.add(data.task.id, data.winner.candidate, right)

    def learn(self, run: RunDatabase) -> None:
        """Add the candidates of a run, except those that failed once. Raises StorageError."""
        for entry in run.tasks():
            found: dict[str, list[RecordedAttempt]] = {}
            for attempt in run.attempts(entry.task.id):
                found.setdefault(attempt.candidate.sha256, []).append(attempt)
            for attempts in found.values():
                self.add(entry.task.id, attempts[0].candidate, counting(attempts))

    def see(self, data: TaskData, turn: Turn) -> bool:
        """Add the file a policy wrote in a turn, as `add` does."""
        candidate = Candidate(source=turn.source, language=data.language, author="policy")
        return bool(turn.source) and self.add(data.task.id, candidate, turn.outcome)

    def save(self, path: Path) -> None:
        """Save the store. Raises StorageError."""
        with self._lock:
            exemplars = {task: tuple(known.values()) for task, known in self._exemplars.items()}
            state_io.write(path, _StoredExemplars(version=self.version, exemplars=exemplars))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a store; an empty one if there is no such file. Raises StorageError."""
        found = state_io.read(path, _StoredExemplars)
        if found is None:
            return cls()
        by_task = {task: {e.candidate: e for e in known} for task, known in found.exemplars.items()}
        return cls(found.version, by_task)

    def of(self, task: str) -> list[Exemplar]:
        with self._lock:
            return list(self._exemplars.get(task, {}).values())

    def draw(
        self, task: str, rng: random.Random, most: int = SHOWN, temperature: float = TEMPERATURE
    ) -> list[Exemplar]:
        """Draw an exemplar from each of `most` distinct buckets, or of all if fewer; the slowest first."""
        buckets: dict[int, list[Exemplar]] = {}
        for exemplar in self.of(task):
            buckets.setdefault(exemplar.bucket, []).append(exemplar)
        left = dict(sorted(buckets.items()))
        drawn: list[Exemplar] = []
        while left and len(drawn) < most:
            weights = probabilities([_mean(bucket) for bucket in left.values()], temperature)
            chosen = rng.choices(list(left), weights)[0]
            drawn.append(rng.choice(left.pop(chosen)))
        return sorted(drawn, key=lambda exemplar: exemplar.speedup)


def probabilities(means: Sequence[float], temperature: float) -> list[float]:
    """Return the probabilities of buckets with these mean speedups: exp((mean - mu) / tau), normalised."""
    assert temperature > 0
    mu = max(means)  # any other constant cancels; this one cannot overflow
    weights = [math.exp((mean - mu) / temperature) for mean in means]
    return [weight / sum(weights) for weight in weights]


def contrastive_section(exemplars: Sequence[Exemplar]) -> str:
    """Return the section of a prompt with these exemplars; "" without any."""
    return template("contrastive.md").render(exemplars=exemplars).strip() if exemplars else ""


def _mean(bucket: Sequence[Exemplar]) -> float:
    return math.fsum(exemplar.speedup for exemplar in bucket) / len(bucket)
