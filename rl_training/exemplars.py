"""Contrastive prompts (CUDA-L1, arXiv:2507.14111): kernels of the task with their speedups, to be compared.

Exemplars come from run databases and, while training goes on, from what the policy wrote. They lie in
buckets of like speedups; N distinct buckets are drawn, each with probability proportional to exp((mean -
mu) / tau), where mu is the mean over all buckets, and one exemplar uniformly from each. So a prompt holds
kernels that differ in speed, the faster ones more often.
"""

import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agent.llm.coder import asked_for
from agent.llm.model import Message
from kernelbench.errors import MissingPrerequisite
from kernelbench.records import Candidate, Record
from results.database import RunDatabase
from results.records import Attempt
from rl_training.environment.rollout import extended
from rl_training.environment.task_data import TaskData
from rl_training.environment.warning import warning
from rl_training.outcome import Outcome, counting
from rl_training.rewards import kept
from rl_training.rewards.hacks import Case, HackMemory
from rl_training.templating import template
from rl_training.trajectory import Turn

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


class _Kept(Record):
    version: int
    exemplars: dict[str, tuple[Exemplar, ...]]  # by task


@dataclass
class ExemplarStore:
    """Correct kernels of each task. Threads may share one. `version` counts what was added."""

    version: int = 0
    _exemplars: dict[str, dict[str, Exemplar]] = field(default_factory=dict)  # task id -> sha256 -> exemplar
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, task: str, candidate: Candidate, outcome: Outcome) -> bool:
        """Take in a candidate, if it is correct and timed. Of two measurements the lower one counts."""
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

    def learn(self, run: RunDatabase) -> None:
        """Take in the candidates of a run, but those that failed once. Raises StorageError."""
        for entry in run.tasks():
            found: dict[str, list[Attempt]] = {}
            for attempt in run.attempts(entry.task.id):
                found.setdefault(attempt.candidate.sha256, []).append(attempt)
            for attempts in found.values():
                self.add(entry.task.id, attempts[0].candidate, counting(attempts))

    def see(self, data: TaskData, turn: Turn) -> bool:
        """Take in what a policy wrote in a turn, as `add` does."""
        candidate = Candidate(source=turn.source, language=data.language, author="policy")
        return bool(turn.source) and self.add(data.task.id, candidate, turn.outcome)

    def save(self, path: Path) -> None:
        """Raises StorageError."""
        with self._lock:
            exemplars = {task: tuple(known.values()) for task, known in self._exemplars.items()}
            kept.write(path, _Kept(version=self.version, exemplars=exemplars))

    @classmethod
    def load(cls, path: Path) -> Self:
        """An empty one where there is no such file. Raises StorageError."""
        found = kept.read(path, _Kept)
        if found is None:
            return cls()
        by_task = {task: {e.candidate: e for e in known} for task, known in found.exemplars.items()}
        return cls(found.version, by_task)

    def of(self, task: str) -> list[Exemplar]:
        with self._lock:
            return list(self._exemplars.get(task, {}).values())

    def draw(
        self, task: str, chance: random.Random, most: int = SHOWN, temperature: float = TEMPERATURE
    ) -> list[Exemplar]:
        """One from each of so many distinct buckets, or of all there are; the slowest first."""
        buckets: dict[int, list[Exemplar]] = {}
        for exemplar in self.of(task):
            buckets.setdefault(exemplar.bucket, []).append(exemplar)
        left = dict(sorted(buckets.items()))
        drawn: list[Exemplar] = []
        while left and len(drawn) < most:
            weights = probabilities([_mean(bucket) for bucket in left.values()], temperature)
            chosen = chance.choices(list(left), weights)[0]
            drawn.append(chance.choice(left.pop(chosen)))
        return sorted(drawn, key=lambda exemplar: exemplar.speedup)


def probabilities(means: Sequence[float], temperature: float) -> list[float]:
    """Of buckets with these mean speedups: exp((mean - mu) / tau), normalised."""
    assert temperature > 0
    mu = max(means)  # any other constant cancels; this one cannot overflow
    weights = [math.exp((mean - mu) / temperature) for mean in means]
    return [weight / sum(weights) for weight in weights]


def contrastive_section(exemplars: Sequence[Exemplar]) -> str:
    """What is added to a prompt; "" without exemplars."""
    return template("contrastive.md").render(exemplars=exemplars).strip() if exemplars else ""


def contrastive_messages(
    data: TaskData, exemplars: Sequence[Exemplar], caught: Sequence[Case] = ()
) -> tuple[Message, ...]:
    """A first prompt for a task, with exemplars, and with hacks that keep coming back."""
    sections = [contrastive_section(exemplars), warning(caught) if caught else ""]
    messages = asked_for(data.situation, data.language, (), None).messages
    return extended(messages, [section for section in sections if section])


@dataclass(frozen=True)
class PromptStream:
    """Prompts without end, task after task, each made when it is asked for, from what the store has then.

    Iterators of the same seed draw alike as long as their stores are alike. With `epochs` it ends.
    """

    tasks: Sequence[TaskData]
    store: ExemplarStore
    seed: int = 0
    most: int = SHOWN
    temperature: float = TEMPERATURE
    repeats: int = 1
    epochs: int | None = None
    hacks: HackMemory | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows: `prompt` (conversational), `task`, `exemplars` (sha256), `store_version`."""
        chance = random.Random(self.seed)
        epoch = 0
        while self.epochs is None or epoch < self.epochs:
            for data in chance.sample(list(self.tasks), len(self.tasks)):
                row = self._row(data, chance)
                for _ in range(self.repeats):
                    yield row
            epoch += 1

    def _row(self, data: TaskData, chance: random.Random) -> dict[str, Any]:
        version = self.store.version
        drawn = self.store.draw(data.task.id, chance, self.most, self.temperature)
        caught = self.hacks.warnings(data.task.id) if self.hacks is not None else []
        return {
            "prompt": [message.model_dump() for message in contrastive_messages(data, drawn, caught)],
            "task": data.task.id,
            "exemplars": [exemplar.candidate for exemplar in drawn],
            "store_version": version,
        }

    def dataset(self) -> Any:
        """As a `datasets.IterableDataset`, which trainers take.

        It must not be shuffled (TRL: `shuffle_dataset=False`): a shuffle reads ahead, so that prompts hold
        exemplars of long ago; a data set of the usual kind, written out, would have those of the beginning
        for ever. TRL repeats each row for a group of generations, which so share a prompt; for a trainer
        that does not, give `repeats`.
        """
        try:
            import datasets
        except ImportError:
            raise MissingPrerequisite(
                "prompts for trainers need the package datasets", "pip install 'kernelwright[rl]'"
            ) from None
        return datasets.IterableDataset.from_generator(_rows, gen_kwargs={"rows": self.__iter__})


def _rows(rows: Callable[[], Iterable[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    yield from rows()


def _mean(bucket: Sequence[Exemplar]) -> float:
    return math.fsum(exemplar.speedup for exemplar in bucket) / len(bucket)
