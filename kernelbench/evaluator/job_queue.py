"""Jobs of an evaluation pool: clients take turns, and slots rather take what they have set up."""

import itertools
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.records import Task

_PATIENCE = 8  # jobs on a task that is at hand that may go before a waiting one
_LOOK_S = 1.0  # seconds between two looks at jobs that wait for a device


class JobFit(Enum):
    """Fitness of a job for a slot."""

    never = 0
    not_yet = 1  # it rather waits for another device
    well = 2
    at_hand = 3  # its task's session is up


@dataclass
class JobOutcome:
    """Result of a job, and the clients that wait for it."""

    result: Future[Any] = field(default_factory=Future)  # no asker's own
    answers: list[Future[Any]] = field(default_factory=list)

    @property
    def given_up(self) -> bool:
        return all(answer.cancelled() for answer in self.answers)


@dataclass
class Job:
    task: Task
    do: Callable[[LocalEvaluator], Any]
    client: str = ""
    key: Hashable = None  # of what is not to be done twice
    outcome: JobOutcome = field(default_factory=JobOutcome)
    since: float = field(default_factory=time.monotonic)
    failed_on: set[str] = field(default_factory=set)  # devices


class JobQueue:
    """Jobs of several clients, who take turns however many jobs each has submitted."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._clients: dict[str, list[Job]] = {}  # in the order of their turns
        self._passed_over = 0  # how often the oldest job of the client whose turn it was has had to wait
        self._under_way = 0
        self._closed = False

    def put(self, job: Job) -> None:
        """Add a job. Raises RuntimeError once it is closed."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._clients.setdefault(job.client, []).append(job)
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Return the number of jobs that nobody has taken."""
        with self._changed:
            return sum(map(len, self._clients.values()))

    def put_back(self, job: Job) -> None:
        """Return a job that was taken, for another slot to take next."""
        with self._changed:
            self._under_way -= 1
            self._clients = {job.client: [job, *self._clients.pop(job.client, [])], **self._clients}
            self._changed.notify_all()

    def done(self) -> None:
        """Count off a job that was taken."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def take(self, fit: Callable[[Job], JobFit], ended: Callable[[], bool] = lambda: False) -> Job | None:
        """Return the job to do next; rather one that is at hand, but not for ever. See `done` and `put_back`.

        `fit`: of a job to the slot that asks. None once the queue is closed and all jobs are done, or the
        slot has `ended`.
        """
        with self._changed:
            while not ended():
                chosen = self._chosen(fit)
                if chosen is not None:
                    return self._taken(*chosen)
                if self._closed and not self._clients and not self._under_way:
                    break
                self._changed.wait(_LOOK_S if self._clients else None)
            return None

    def _chosen(self, fit: Callable[[Job], JobFit]) -> tuple[str, int] | None:
        """Return a client and the place of its job; None if none of them is for this slot now."""
        fitting = (
            (client, place, how)
            for client, waiting in self._clients.items()
            for place, job in enumerate(waiting)
            if (how := fit(job)) in (JobFit.well, JobFit.at_hand)
        )  # looked at no further than needed: there may be thousands
        first = next(fitting, None)
        if first is None:
            return None
        if self._passed_over < _PATIENCE:
            jobs = itertools.chain([first], fitting)
            at_hand = next((job for job in jobs if job[2] is JobFit.at_hand), None)
            if at_hand is not None:
                self._passed_over = 0 if at_hand is first else self._passed_over + 1
                return at_hand[:2]
        self._passed_over = 0
        return first[:2]

    def _taken(self, client: str, place: int) -> Job:
        jobs = self._clients.pop(client)
        job = jobs.pop(place)
        if jobs:
            self._clients[client] = jobs  # behind the others
        self._under_way += 1
        return job

    def look_again(self) -> None:
        """Have all slots look whether they have ended."""
        with self._changed:
            self._changed.notify_all()

    def close(self, discard: bool) -> None:
        """Accept no more jobs; with `discard`, those that wait are cancelled."""
        with self._changed:
            self._closed = True
            discarded = [job for jobs in self._clients.values() for job in jobs] if discard else []
            if discard:
                self._clients.clear()
            self._changed.notify_all()
        for job in discarded:
            job.outcome.result.cancel()
