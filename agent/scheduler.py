"""Scheduler: which task of a run gets the next round.

Where nothing limits the run, tasks are searched to their end in the order given. Where its dollars, tokens or
evaluations are limited, every task gets a first round; then each round goes to the task with the largest
expected gain for its cost.

- **Gain.** A round closes a share of the headroom to the roofline, of which the tasks' rounds so far say what
  to expect: the mean of a Beta posterior, whose prior is worth two rounds like the average one of the run.
  After rounds that closed 0 and 0.5, where those of the run close 0.2, the next is expected to close
  (2 * 0.2 + 0 + 0.5) / (2 + 2) = 0.225 of what is left.
- **Cost.** As the task's rounds have cost on average, with one like the average one of the run among them.

Both follow from what is recorded, so a run that is resumed goes on as it would have; tasks in whose round it
was ended come first.
"""

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from kernelwright.agent.headroom import Headroom
from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.records import Task

_PRIOR_ROUNDS = 2.0  # that the average round of the run counts as in each task; this and the next by hand
_FIRST_SHARE = 0.2  # of the headroom, that a round closes before any of the run is known


@dataclass(eq=False)
class OpenTask:
    """A task that is not done, with its history, which belongs to whoever has taken the task."""

    task: Task
    tried: list[Attempt] = field(default_factory=list)
    had_round: bool = False  # or was given the chance of one
    taken: bool = False
    # As they were when the task was last returned.
    headroom: Headroom = field(default_factory=Headroom)
    used: float = 0.0

    @property
    def rounds(self) -> int:
        return len(self.headroom.closed)


@dataclass(frozen=True)
class Turn:
    """A task that is to get its next step."""

    open: OpenTask
    candidates: int | None  # at most; None: as many as the search asks for at a time
    waiting: int  # tasks without a first round, this one included; 0 where it has had its own


class Scheduler:
    """Hands out tasks, each to one thread at a time."""

    def __init__(
        self,
        tasks: Iterable[OpenTask],
        used: Callable[[str], float],
        *,
        breadth_first: bool,
        workers: int = 1,
        interrupted: Collection[str] = (),
        free_author: str | None = None,
    ) -> None:
        """Create a scheduler of the tasks of a run that are not done.

        `used`: what a task has taken of the scarcest limit, as a share of it. `interrupted`: tasks in whose
        round the run was ended. `free_author`: the coder whose rounds cost nothing.
        """
        self._open = list(tasks)
        self._used, self._breadth_first, self._workers = used, breadth_first, workers
        self._interrupted, self._free_author = set(interrupted), free_author
        self._closed = False
        self._changed = threading.Condition()
        for each in self._open:
            self._look_at(each)

    def take(self) -> Turn | None:
        """Return the task to go on with, once there is one; None when all are done, or `close` was called."""
        with self._changed:
            while not self._closed and self._open:
                free = [(number, each) for number, each in enumerate(self._open) if not each.taken]
                if free:
                    return self._turn(min(free, key=self._rank())[1])
                self._changed.wait()
            return None

    def put_back(self, turn: Turn, *, done: bool) -> None:
        """Return a task that was taken."""
        with self._changed:
            turn.open.taken = False
            self._interrupted.discard(turn.open.task.id)
            if done:
                self._open.remove(turn.open)
            else:
                self._look_at(turn.open)
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out no more tasks."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def tasks(self) -> list[OpenTask]:
        """Return the tasks that are not done."""
        with self._changed:
            return list(self._open)

    def _turn(self, chosen: OpenTask) -> Turn:
        chosen.taken = True
        if not self._breadth_first:
            return Turn(chosen, None, 0)
        waiting = 0 if chosen.had_round else sum(not each.had_round for each in self._open)
        chosen.had_round = True
        return Turn(chosen, 1 if len(self._open) > self._workers else None, waiting)

    def _look_at(self, open_task: OpenTask) -> None:
        open_task.headroom = Headroom.of(open_task.tried, self._free_author)
        open_task.used = self._used(open_task.task.id)
        open_task.had_round |= open_task.rounds > 0

    def _rank(self) -> Callable[[tuple[int, OpenTask]], tuple[float, ...]]:
        """Return the sort key of open tasks, the next one first."""
        if not self._breadth_first:
            return lambda numbered: (numbered[0],)
        rounds = sum(each.rounds for each in self._open)
        closed = sum(sum(each.headroom.closed) for each in self._open)
        share = (_FIRST_SHARE + closed) / (1 + rounds)
        cost = sum(each.used for each in self._open) / max(1, rounds)

        def rank(numbered: tuple[int, OpenTask]) -> tuple[float, ...]:
            number, each = numbered
            first = each.task.id not in self._interrupted
            if not each.had_round:
                return first, False, 0.0, number
            own = _PRIOR_ROUNDS * share + sum(each.headroom.closed)
            gain = each.headroom.left * own / (_PRIOR_ROUNDS + each.rounds)
            each_cost = (each.used + cost) / (each.rounds + 1)
            return first, True, -gain / each_cost if each_cost > 0 else -gain, number

        return rank
