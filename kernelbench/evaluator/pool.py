"""Many evaluations at a time, for searches and training, of which only one times at a time.

Building and verifying run side by side, in lanes; while one lane times, the others stand still, for a timing
that a compiler shares its cores with is worth nothing.
"""

import os
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

from kernelbench.evaluator.evaluator import BASELINES, Evaluator
from kernelbench.evaluator.protocol import Effort
from kernelbench.records import Candidate, Evaluation, Task

_LANE_BYTES = 6 << 30  # of memory, that a lane's oracle, workers and their inputs and outputs may take
_LANES_ON_GPU = 2  # at most: every lane has an oracle, baselines and inputs on it
_PATIENCE = 8  # jobs on a lane's own task that may go before a waiting one
_REMEMBERED = 10_000  # evaluations


@dataclass
class _Outcome:
    """What comes of a job, and of whom it is awaited."""

    result: Future[Evaluation] = field(default_factory=Future)  # no asker's own: see `_pass_on`
    answers: list[Future[Evaluation]] = field(default_factory=list)

    @property
    def given_up(self) -> bool:
        return all(answer.cancelled() for answer in self.answers)


@dataclass
class _Job:
    task: Task
    candidate: Candidate
    baselines: tuple[str, ...]
    effort: Effort | None
    outcome: _Outcome = field(default_factory=_Outcome)

    @property
    def key(self) -> Hashable:
        task, candidate = self.task, self.candidate
        return task.id, task.sha256, candidate.sha256, candidate.language, self.baselines, self.effort


class _Queue:
    """Jobs of several clients, who take turns however many jobs each has handed in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._clients: dict[str, list[_Job]] = {}  # in the order of their turns
        self._passed_over = 0  # how often the oldest job of the client whose turn it was has had to wait
        self._closed = False

    def put(self, client: str, job: _Job) -> None:
        """Raises RuntimeError once it is closed."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._clients.setdefault(client, []).append(job)
            self._changed.notify()

    def take(self, at_hand: Task | None) -> _Job | None:
        """The next job; rather one of the task `at_hand`, whose oracle is up, but not for ever.

        None once the queue is closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._clients or self._closed)
            if not self._clients:
                return None
            client, place = self._chosen(at_hand)
            jobs = self._clients.pop(client)
            job = jobs.pop(place)
            if jobs:
                self._clients[client] = jobs  # behind the others
            return job

    def _chosen(self, at_hand: Task | None) -> tuple[str, int]:
        """A client and the place of its job."""
        turn = next(iter(self._clients))
        if self._passed_over < _PATIENCE:
            for client, jobs in self._clients.items():
                for place, job in enumerate(jobs):
                    if job.task == at_hand:
                        self._passed_over = 0 if (client, place) == (turn, 0) else self._passed_over + 1
                        return client, place
        self._passed_over = 0
        return turn, 0

    def close(self, discard: bool) -> None:
        """No more jobs; with `discard`, those that wait are cancelled."""
        with self._changed:
            self._closed = True
            discarded = [job for jobs in self._clients.values() for job in jobs] if discard else []
            if discard:
                self._clients.clear()
            self._changed.notify_all()
        for job in discarded:
            job.outcome.result.cancel()


class EvaluationPool:
    """Evaluates what is submitted from any thread; what was evaluated before is not evaluated again."""

    def __init__(self, evaluator: Evaluator, lanes: int | None = None) -> None:
        """`lanes`: evaluations under way at a time; as many as there are CPUs and memory for by default."""
        most = most_lanes() if evaluator.pool.device == "cpu" else min(most_lanes(), _LANES_ON_GPU)
        self.lanes = lanes or min(len(os.sched_getaffinity(0)), most)
        self._queue = _Queue()
        self._lock = threading.Lock()
        self._known: dict[Hashable, _Outcome] = {}  # the oldest first
        self._threads = [
            threading.Thread(
                target=self._work, args=(evaluator.sibling(),), name=f"lane-{number}", daemon=True
            )
            for number in range(self.lanes)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        task: Task,
        candidate: Candidate,
        baselines: Sequence[str] = BASELINES,
        effort: Effort | None = None,
        client: str = "",
    ) -> Future[Evaluation]:
        """The evaluation to come, as of `Evaluator.evaluate`; clients take turns.

        The same question asked twice is one evaluation. What ended with an error may be asked again.
        Cancelling gives up the answer; what everybody gave up before it began is not evaluated. Raises
        RuntimeError once the pool is closed.
        """
        answer: Future[Evaluation] = Future()
        job = _Job(task, candidate, tuple(baselines), effort)
        with self._lock:
            known = self._known.get(job.key)
            if known is None:
                self._queue.put(client, job)
                known = self._known[job.key] = job.outcome
                while len(self._known) > _REMEMBERED and next(iter(self._known.values())).result.done():
                    del self._known[next(iter(self._known))]
            if not known.result.done():
                known.answers.append(answer)
        known.result.add_done_callback(lambda done: _pass_on(done, answer))
        return answer

    def _given_up(self, job: _Job) -> bool:
        """Whether nobody waits for it any more; then the next who asks begins anew."""
        with self._lock:
            if not job.outcome.given_up:
                return False
            del self._known[job.key]
        return job.outcome.result.cancel()

    def _work(self, evaluator: Evaluator) -> None:
        at_hand = None
        with evaluator:
            while (job := self._queue.take(at_hand)) is not None:
                if self._given_up(job):
                    continue
                at_hand = job.task
                try:
                    found = evaluator.evaluate(job.task, job.candidate, job.baselines, job.effort)
                except BaseException as error:  # noqa: BLE001 - it is whoever asked who must know
                    with self._lock:
                        self._known.pop(job.key, None)
                    job.outcome.result.set_exception(error)
                else:
                    job.outcome.result.set_result(found)

    def close(self, discard: bool = False) -> None:
        """Wait for what was submitted; with `discard`, only for what is under way."""
        self._queue.close(discard)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(discard=kind is not None)


def _pass_on(done: Future[Evaluation], answer: Future[Evaluation]) -> None:
    """One asker's `answer`, who may have given it up, is what came of the evaluation."""
    if done.cancelled():
        answer.cancel()
    if not answer.set_running_or_notify_cancel():
        return
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


def most_lanes() -> int:
    """How many evaluations this machine has the memory to have under way at a time."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, memory // _LANE_BYTES)
