"""Memory across tasks: effects of changes to other tasks' kernels, for prompts and for the rules judge.

Its answers are recorded: they must be the same when a run is resumed or replayed, although more is known by
then.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.records import Language, Task
from kernelwright.results.lessons.lessons import (
    Effect,
    Expectation,
    bytes_moved,
    effects_in,
    expectations,
    lines_for,
)
from kernelwright.results.store.database import RunDatabase


class LessonMemory:
    """Effects of techniques. Thread-safe. All methods raise StorageError when the database fails."""

    def __init__(self, database: RunDatabase, before: Iterable[Effect] = ()) -> None:
        """Open the memory of a run, new or resumed; `before`: effects of other runs."""
        self._database = database
        self._chip = database.run.target.fingerprint.chip
        entries = database.tasks()
        self._before = tuple(before)
        self._of_tasks = {e.task.id: effects_in(e.task, database.attempts(e.task.id)) for e in entries}
        self._told = {entry.task.id: dict(entry.lessons) for entry in entries}
        self._lock = threading.Lock()

    def learn(self, task: Task) -> None:
        """Learn from the attempt at this task that was recorded last: of its own idea, or an earlier one."""
        found = effects_in(task, self._database.attempts(task.id))
        with self._lock:
            self._of_tasks[task.id] = found

    @property
    def _effects(self) -> list[Effect]:
        return [*self._before, *(effect for found in self._of_tasks.values() for effect in found)]

    def lines(self, task: Task, seen: int, language: Language) -> tuple[str, ...]:
        """Return the lessons once `seen` attempts at the task are known; repeatable."""
        return self._tell(
            task, f"{seen} {language}", lambda: lines_for(task, language, self._chip, self._effects)
        )

    def expectations(self, task: Task, history: Sequence[Attempt]) -> dict[str, Expectation]:
        """Return the effects of techniques in tasks of the same class, as known after the `history`."""
        if not history:
            return {}
        language, moved = history[0].candidate.language, bytes_moved(history[0].profile)

        def lines() -> tuple[str, ...]:
            found = expectations(task, language, self._chip, moved, self._effects)
            return tuple(f"{name} {e.mean!r} {e.count}" for name, e in sorted(found.items()))

        told = [line.rsplit(" ", 2) for line in self._tell(task, f"{len(history)} expectations", lines)]
        return {name: Expectation(float(mean), int(count)) for name, mean, count in told}

    def _tell(self, task: Task, key: str, lines: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """Return the lines recorded for a task under this key; else record the new `lines`."""
        with self._lock:
            told = self._told.setdefault(task.id, {})
            if key not in told:
                told[key] = lines()
                self._database.record_lessons(task.id, told)
            return told[key]
