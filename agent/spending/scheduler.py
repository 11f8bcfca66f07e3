"""Scheduler: which task of a run gets the next round.

Where nothing limits the run, tasks are searched to their end in the order given. Where its dollars, tokens or
evaluations are limited, every task gets a first round; then each round goes to the task with the largest
expected gain for its cost.

- **Gain.** The headroom to the roofline, times the share of it that a round is expected to close. That is the
  average over the run's rounds from the same standing (nothing correct yet, slower or faster than eager, and
  since how many rounds), with two more like the average of all: the posterior mean under a Beta prior. Where
  8 rounds after a first failure closed 0.1 each, and all rounds 0.2, it is (8 * 0.1 + 2 * 0.2) / (8 + 2) =
  0.12.
- **Cost.** As the task's rounds have cost on average, with one like the average one of the run among them.

A task that is cut into parts waits until these are done. Gains count by the part's share of the whole's time,
and of first rounds' money the parts get their shares of what the whole would, which keeps the rest.

Both follow from what is recorded, so a run that is resumed goes on as it would have; tasks in whose round it
was ended come first.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.spending.headroom import Headroom, RoundGain, Standing
from kernelwright.kernelbench.records import Task

_PRIOR_ROUNDS = 2.0  # like the average one, beside those from a standing; this and the next by hand
_FOR_WHOLE = 0.1  # of a task's money at least, where its parts take all of its time
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
        return len(self.headroom.rounds)

    @property
    def share(self) -> float:
        """Share of the time of the task that it is a part of; 1 for a whole."""
        return self.task.part.share if self.task.part is not None else 1.0


@dataclass(frozen=True)
class TaskTurn:
    """A task that is to get its next step."""

    open: OpenTask
    candidates: int | None  # at most; None: as many as the search asks for at a time
    # Tasks without a first round, this one included, counted by what they are to get, in units of what this
    # one is to get; 0 where it has had its own.
    waiting: float


class Scheduler:
    """Hands out tasks, each to one thread at a time."""

    def __init__(
        self,
        tasks: Iterable[OpenTask],
        used: Callable[[str], float],
        *,
        breadth_first: bool,
        done: Iterable[OpenTask] = (),
        workers: int = 1,
        interrupted: Collection[str] = (),
        free_author: str | None = None,
    ) -> None:
        """Create a scheduler of the tasks of a run that are not done; those `done` are learned from.

        `used`: what a task has taken of the scarcest limit, as a share of it. `interrupted`: tasks in whose
        round the run was ended. `free_author`: the coder whose rounds cost nothing.
        """
        self._open, self._done = list(tasks), list(done)
        self.breadth_first = breadth_first
        self._used, self._workers = used, workers
        self._interrupted, self._free_author = set(interrupted), free_author
        self._closed = False
        self._changed = threading.Condition()
        for each in (*self._open, *self._done):
            self._look_at(each)

    def take(self) -> TaskTurn | None:
        """Return the task to go on with, once there is one; None when all are done, or `close` was called."""
        with self._changed:
            while not self._closed and self._open:
                cut = {each.task.part.whole for each in self._open if each.task.part is not None}
                free = [
                    (number, each)
                    for number, each in enumerate(self._open)
                    if not each.taken and each.task.id not in cut
                ]
                if free:
                    return self._turn(min(free, key=self._rank())[1])
                self._changed.wait()
            return None

    def put_back(self, turn: TaskTurn, *, done: bool) -> None:
        """Return a task that was taken."""
        with self._changed:
            turn.open.taken = False
            self._interrupted.discard(turn.open.task.id)
            self._look_at(turn.open)
            if done:
                self._open.remove(turn.open)
                self._done.append(turn.open)
            self._changed.notify_all()

    def add(self, parts: Sequence[OpenTask]) -> None:
        """Add the parts of a task, which waits until they are done."""
        with self._changed:
            whole = {each.task.part.whole for each in parts if each.task.part is not None}
            place = next((n for n, each in enumerate(self._open) if each.task.id in whole), len(self._open))
            for each in parts:
                self._look_at(each)
            self._open[place:place] = parts
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

    def _turn(self, chosen: OpenTask) -> TaskTurn:
        chosen.taken = True
        if not self.breadth_first:
            return TaskTurn(chosen, None, 0)
        waiting = 0.0
        if not chosen.had_round:
            weights = [self._weight(each) for each in self._open if not each.had_round]
            waiting = math.fsum(weights) / self._weight(chosen)
        chosen.had_round = True
        return TaskTurn(chosen, 1 if len(self._open) > self._workers else None, waiting)

    def _weight(self, open_task: OpenTask) -> float:
        """Return what a task is to get of the money for first rounds, relative to one without parts."""
        cut = [
            each.share
            for each in (*self._open, *self._done)
            if each.task.part is not None and each.task.part.whole == open_task.task.id
        ]
        return max(_FOR_WHOLE, open_task.share - math.fsum(cut))

    def _look_at(self, open_task: OpenTask) -> None:
        open_task.headroom = Headroom.of(open_task.tried, self._free_author)
        open_task.used = self._used(open_task.task.id)
        open_task.had_round |= open_task.rounds > 0

    def _rank(self) -> Callable[[tuple[int, OpenTask]], tuple[float, ...]]:
        """Return the sort key of open tasks, the next one first."""
        if not self.breadth_first:
            return lambda numbered: (numbered[0],)
        rounds = [one for each in (*self._open, *self._done) for one in each.headroom.rounds]
        share = self._shares(rounds)
        cost = math.fsum(each.used for each in (*self._open, *self._done)) / max(1, len(rounds))

        def rank(numbered: tuple[int, OpenTask]) -> tuple[float, ...]:
            number, each = numbered
            first = each.task.id not in self._interrupted
            if not each.had_round:
                return first, False, 0.0, number
            gain = each.share * each.headroom.left * share(each.headroom.standing)
            each_cost = (each.used + cost) / (each.rounds + 1)
            return first, True, -gain / each_cost if each_cost > 0 else -gain, number

        return rank

    def _shares(self, rounds: Sequence[RoundGain]) -> Callable[[Standing], float]:
        """Return what a round from a standing is expected to close, by the `rounds` of the run."""
        closed: dict[Standing, list[float]] = {}
        for standing, share in rounds:
            closed.setdefault(standing, []).append(share)
        usual = (_FIRST_SHARE + math.fsum(one.closed for one in rounds)) / (1 + len(rounds))

        def share_of(standing: Standing) -> float:
            known = closed.get(standing, [])
            return (_PRIOR_ROUNDS * usual + math.fsum(known)) / (_PRIOR_ROUNDS + len(known))

        return share_of
