"""What a run, and each of its tasks, may take: dollars, tokens, evaluations, minutes."""

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from kernelbench.records import Record


class BudgetSpent(Exception):  # noqa: N818 - a state
    """No more may be spent; says of what."""


class Allowance(Record):
    """None is no limit.

    `minutes`: of a run by the clock; of a task what its evaluations and its model calls take, without what
    they wait for their turn.
    """

    usd: NonNegativeFloat | None = None
    tokens: NonNegativeInt | None = None
    evaluations: NonNegativeInt | None = None
    minutes: PositiveFloat | None = None

    def replaced_by(self, other: "Allowance") -> "Allowance":
        """This one, but for the limits that `other` has."""
        return self.model_copy(update=other.model_dump(exclude_none=True))


class Evaluations:
    """Counts those of a run and of its tasks. One is kept for each task that has had any: for its winner.

    May be used from many threads. What is refused ends with BudgetSpent.
    """

    def __init__(
        self,
        run: int | None = None,
        task: int | None = None,
        had: Mapping[str, int] = MappingProxyType({}),
        unfinished: Collection[str] = (),
    ) -> None:
        """`run`, `task`: how many each may have; `had`: what tasks had before; some are `unfinished`."""
        self._run, self._task = run, task
        self._had = Counter(had)
        self._kept = {name for name in unfinished if self._had[name]}  # that one more is kept for
        self._lock = threading.Lock()

    def begin(self, task: str) -> None:
        """Count one that begins now. Raises BudgetSpent."""
        with self._lock:
            self._require(task, 1 if task in self._kept else 2)
            self._kept.add(task)
            self._had[task] += 1

    def begin_last(self, task: str) -> None:
        """Count the one that was kept for a task's winner, or another one. Raises BudgetSpent."""
        with self._lock:
            if task not in self._kept:
                self._require(task, 1)
            self._kept.discard(task)
            self._had[task] += 1

    def done(self, task: str) -> None:
        """None is kept for this task any more."""
        with self._lock:
            self._kept.discard(task)

    def left(self, task: str) -> int | None:
        """How many can be begun on a task, just now; None is no limit."""
        with self._lock:
            kept = task in self._kept
            limits = [
                limit - had - (not kept)
                for limit, had in (
                    (self._task, self._had[task] + kept),
                    (self._run, self._had.total() + len(self._kept)),
                )
                if limit is not None
            ]
        return max(0, min(limits)) if limits else None

    def spent(self, task: str) -> str | None:
        """Why none can be begun on a task, just now; None where one can."""
        try:
            with self._lock:
                self._require(task, 1 if task in self._kept else 2)
        except BudgetSpent as spent:
            return str(spent)
        return None

    def _require(self, task: str, more: int) -> None:
        if self._task is not None and self._had[task] + (task in self._kept) + more > self._task:
            raise BudgetSpent(f"{self._task} evaluations are spent on this task, or kept for its winner")
        if self._run is not None and self._had.total() + len(self._kept) + more > self._run:
            raise BudgetSpent(f"{self._run} evaluations are spent, or kept for winners")
