"""The parts of a run's tasks: which there are, and what is put together from their best kernels."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from kernelwright.agent.parts.assembly import PlacedPart, assembled
from kernelwright.agent.parts.cutting import NotCut, cut
from kernelwright.agent.parts.names import NotRenamed
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import PARTS
from kernelwright.agent.spending.budget import SpendingLimits
from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.evaluator import LocalEvaluator
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import RecordedAttempt, TaskState
from kernelwright.results.summary import best_attempt

_LEVEL = 3  # of tasks that are cut; files of the user have level 0, and are where there are several parts
_LEAST = 3  # evaluations of a part: a seed, a candidate, and the winner once more


@dataclass
class TaskParts:
    """`may_cut`: cut tasks that have no parts yet. `limits`: of a task.

    `say` is told what is cut, and what is left out.
    """

    database: RunDatabase
    pool: ProfilingPool
    may_cut: bool
    limits: SpendingLimits
    say: Callable[[str], None]
    _of: dict[str, list[Task]] = field(default_factory=dict)  # by the id of the whole
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._add([entry.task for entry in self.database.tasks()])

    def of(self, task: Task) -> list[Task]:
        """Return the parts of a task."""
        with self._lock:
            return list(self._of.get(task.id, ()))

    def pending(self, task: Task) -> list[str]:
        """Return the ids of a task's parts that are not done."""
        mine = {part.id for part in self.of(task)}
        return [
            entry.task.id
            for entry in (self.database.tasks() if mine else ())
            if entry.task.id in mine and entry.state is TaskState.pending
        ]

    def cut(self, task: Task) -> list[Task]:
        """Cut a task that has not begun, and record its parts; none where it has no such."""
        if not self.may_cut or task.part is not None or 0 < task.level < _LEVEL or task.workload:
            return []  # of several sizes, parts would be of the first alone
        try:
            parts = self.pool.ask(task, partial(_cut, task), task.id).result()
        except NotCut as why:
            if task.level >= _LEVEL:
                self.say(f"{task.id}: searched whole: {why}")
            return []
        evaluations = [self.limits.of_part(part.part).evaluations for part in parts]
        parts = [
            part for part, most in zip(parts, evaluations, strict=True) if most is None or most >= _LEAST
        ]
        if len(parts) < (1 if task.level >= _LEVEL else 2):
            return []
        self.database.add_tasks(parts)
        self._add(parts)
        named = ", ".join(
            f"{part.id.removeprefix(task.id)} {part.part.share:.0%}" for part in parts if part.part
        )
        self.say(f"{task.id}: cut into parts: {named} of its time")
        return parts

    def together(self, task: Task) -> Candidate | None:
        """Return the file of a task that is put together from its parts' kernels; None without any."""
        placed, parents = list[PlacedPart](), list[str]()
        for part in self.of(task):
            best = _usable(self.database.attempts(part.id))
            if part.part is not None and best is not None:
                source = best.candidate.source
                placed.append(PlacedPart(part.part.places, part.part.is_plain, source))
                parents.append(best.candidate.sha256)
        if not placed:
            return None
        try:
            source, left = assembled(task.source, placed)
        except NotRenamed as why:
            self.say(f"{task.id}: not put together from its parts: {why}")
            return None
        for name, why_left in left.items():
            self.say(f"{task.id}: its part {name} is left to torch: {why_left}")
        if len(left) == len(placed):
            return None
        return Candidate(
            source=source,
            language=language_of(source),
            author=PARTS,
            parents=tuple(parents),
            origin="seed",
        )

    def _add(self, tasks: Sequence[Task]) -> None:
        with self._lock:
            for task in tasks:
                if task.part is not None:
                    self._of.setdefault(task.part.whole, []).append(task)


def _cut(task: Task, evaluator: LocalEvaluator) -> list[Task]:
    return cut(evaluator.sessions.pool, task)


def _usable(attempts: Sequence[RecordedAttempt]) -> RecordedAttempt | None:
    """Return the best attempt that gains anything and whose weights have the names of the reference's."""
    best = best_attempt(attempt for attempt in attempts if _weights_are_named(attempt))
    speedup = best.evaluation.speedup if best is not None else None
    if best is None or speedup is None or speedup.eager is None or best.candidate.language == "torch":
        return None
    return best if speedup.eager.median > 1 else None


def _weights_are_named(attempt: RecordedAttempt) -> bool:
    correctness = attempt.evaluation.correctness
    return correctness is None or correctness.weights == "name"
