"""Limits of a run and of each of its tasks: dollars, tokens, evaluations, minutes."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from kernelwright.kernelbench.records import PartOf, Record, Task

FOR_PARTS = 0.75  # of what a task may spend, in proportion to their time; the rest is for the whole
_WHOLE = 2  # evaluations kept for a whole whose parts had some: put together, and once more if that wins


class BudgetSpent(Exception):  # noqa: N818 - a state
    """No more may be spent; says of what."""


class ShareSpent(BudgetSpent):
    """No more may be spent on a task now; there may be more for it once other tasks had their share."""


class SpendingLimits(Record):
    """None is no limit.

    `minutes`: of a run by the clock; of a task what its evaluations and its model calls take, without what
    they wait for their turn.
    """

    usd: NonNegativeFloat | None = None
    tokens: NonNegativeInt | None = None
    evaluations: NonNegativeInt | None = None
    minutes: PositiveFloat | None = None

    def replaced_by(self, other: "SpendingLimits") -> "SpendingLimits":
        """Return these limits with those that `other` sets replaced."""
        return self.model_copy(update=other.model_dump(exclude_none=True))

    def of_part(self, part: PartOf | None) -> "SpendingLimits":
        """Return the limits of a part of a task that has these; its own where it is none."""
        if part is None:
            return self
        share = FOR_PARTS * part.share
        return SpendingLimits(
            usd=None if self.usd is None else self.usd * share,
            tokens=None if self.tokens is None else int(self.tokens * share),
            evaluations=None if self.evaluations is None else int(self.evaluations * share),
            minutes=None if self.minutes is None else self.minutes * share,
        )


class Evaluations:
    """Counts those of a run and of its tasks. One is kept for each task that has had any: for its winner.

    Those of a part are its whole's, too.

    May be used from many threads. What is refused ends with BudgetSpent.
    """

    def __init__(
        self,
        run: int | None = None,
        task: int | None = None,
        had: Mapping[str, int] = MappingProxyType({}),
        unfinished: Collection[str] = (),
        parts: Iterable[Task] = (),
    ) -> None:
        """`run`, `task`: how many each may have; `had`: what tasks had before; some are `unfinished`."""
        self._run, self._task = run, task
        self._had = Counter(had)
        self._kept: dict[str, int] = {}  # for winners, and for wholes that have not begun, by task
        self._parts: dict[str, PartOf] = {}
        self._lock = threading.Lock()
        self.add_parts(parts)
        for name in unfinished:
            if self._had[name]:
                self._keep(name)

    def add_parts(self, tasks: Iterable[Task]) -> None:
        """Count the evaluations of these parts as their wholes', too."""
        with self._lock:
            self._parts |= {task.id: task.part for task in tasks if task.part is not None}

    def begin(self, task: str) -> None:
        """Count one that begins now. Raises BudgetSpent."""
        with self._lock:
            self._require(task, keep=True)
            self._keep(task)
            self._had[task] += 1

    def begin_last(self, task: str) -> None:
        """Count the one that was kept for a task's winner, or another one. Raises BudgetSpent."""
        with self._lock:
            if task not in self._kept:
                self._require(task, keep=False)
            self._kept.pop(task, None)
            self._had[task] += 1

    def had(self, task: str) -> int:
        """Return the number that a task has had."""
        with self._lock:
            return self._had[task]

    @property
    def total(self) -> int:
        """Return the number that all tasks have had."""
        with self._lock:
            return self._had.total()

    def done(self, task: str) -> None:
        """Release the evaluation that is kept for this task."""
        with self._lock:
            self._kept.pop(task, None)

    def left(self, task: str) -> int | None:
        """Return the number that can be begun on a task now; None means no limit."""
        with self._lock:
            return min((max(0, left) for left, _ in self._limits(task, keep=True)), default=None)

    def spent(self, task: str) -> str | None:
        """Return the reason why none can be begun on a task now; None if one can."""
        with self._lock:
            return next((said for left, said in self._limits(task, keep=True) if left < 1), None)

    def _require(self, task: str, keep: bool) -> None:
        for left, said in self._limits(task, keep):
            if left < 1:
                raise BudgetSpent(said)

    def _keep(self, task: str) -> None:
        self._kept |= self._to_keep(task)

    def _to_keep(self, task: str) -> dict[str, int]:
        """Return what is kept for a task that has begun, and for the whole that it is a part of."""
        part = self._parts.get(task)
        whole = {part.whole: _WHOLE} if part is not None and not self._had[part.whole] else {}
        return {task: 1} | whole

    def _limits(self, task: str, keep: bool) -> Iterator[tuple[int, str]]:
        """Yield what each limit leaves for a task, less what is kept if `keep`, and the message for none."""
        kept = self._kept | self._to_keep(task) if keep else self._kept
        part = self._parts.get(task)
        if self._task is not None:
            whole = part.whole if part is not None else task
            family = {whole, *(name for name, other in self._parts.items() if other.whole == whole)}
            had, own = sum(self._had[name] for name in family), sum(kept.get(name, 0) for name in family)
            yield (
                self._task - had - own,
                f"{self._task} evaluations are spent on this task, or kept for its winner",
            )
        if self._task is not None and part is not None:
            most = int(self._task * FOR_PARTS * part.share)
            yield most - self._had[task] - keep, f"{most} evaluations, this part's share, are spent on it"
        if self._run is not None:
            left = self._run - self._had.total() - sum(kept.values())
            yield left, f"{self._run} evaluations are spent, or kept for winners"


def deadline(max_minutes: float | None) -> Callable[..., str | None]:
    """Return a check that gives a reason once `max_minutes` from now, less the seconds given, have passed."""
    end = None if max_minutes is None else time.monotonic() + 60 * max_minutes

    def check(kept_s: float = 0.0) -> str | None:
        left = math.inf if end is None else end - time.monotonic()
        if left >= kept_s:
            return None
        return f"{max_minutes:g} minutes are over" + (", or kept to confirm winners" if left >= 0 else "")

    return check
