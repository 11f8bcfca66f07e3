"""Memory across tasks: what changes to other tasks' kernels came to, as a few lines for prompts.

What a prompt was told is recorded, for it must be the same when a run goes on or is replayed, although more
is known by then.
"""

import threading
from collections.abc import Iterable

from kernelbench.records import Language, Task
from results.database import RunDatabase
from results.lessons import Effect, effect_of, effects_of, lines_for


class Memory:
    """May be used from many threads. Everything raises StorageError when the database fails."""

    def __init__(self, database: RunDatabase, before: Iterable[Effect] = ()) -> None:
        """Of a run that may have begun; `before`: of other runs."""
        self._database = database
        self._chip = database.run.target.fingerprint.chip
        self._effects = [*before, *effects_of(database)]
        self._told = {entry.task.id: dict(entry.lessons) for entry in database.tasks()}
        self._lock = threading.Lock()

    def learn(self, task: Task) -> None:
        """Take in the attempt at this task that was recorded last."""
        attempts = self._database.attempts(task.id)
        effect = effect_of(task, attempts[-1], attempts)
        if effect is not None:
            with self._lock:
                self._effects.append(effect)

    def lines(self, task: Task, seen: int, language: Language) -> tuple[str, ...]:
        """What is said where `seen` attempts at the task are known; the same whenever it is asked for."""
        with self._lock:
            key, told = f"{seen} {language}", self._told.setdefault(task.id, {})
            if key not in told:
                told[key] = lines_for(task, language, self._chip, self._effects)
                self._database.record_lessons(task.id, told)
            return told[key]
