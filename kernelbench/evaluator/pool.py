"""Many evaluations at a time, for searches and training, of which only one times at a time.

Building and verifying run side by side, in lanes; while one lane times, the others stand still, for a timing
that a compiler shares its cores with is worth nothing.
"""

import os
import threading
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

from kernelbench.evaluator.evaluator import BASELINES, Evaluator
from kernelbench.evaluator.protocol import Effort
from kernelbench.records import Candidate, Evaluation, Task

_LANE_BYTES = 6 << 30  # of memory, that a lane's oracle, workers and their inputs and outputs may take
_PATIENCE = 8  # jobs on a lane's own task that may go before a waiting one


@dataclass
class _Job:
    task: Task
    candidate: Candidate
    baselines: tuple[str, ...]
    effort: Effort | None
    result: Future[Evaluation] = field(default_factory=Future)

    @property
    def key(self) -> Hashable:
        return self.task.sha256, self.candidate.sha256, self.baselines, self.effort


class _Queue:
    """Jobs of several clients, who take turns however many jobs each has handed in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._clients: dict[str, deque[_Job]] = {}  # in the order of their turns
        self._passed_over = 0
        self._closed = False

    def put(self, client: str, job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._clients.setdefault(client, deque()).append(job)
            self._changed.notify()

    def take(self, at_hand: Task | None) -> _Job | None:
        """The next job; rather one of the task `at_hand`, whose oracle is up, but not for ever.

        None once the queue is closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._clients or self._closed)
            if not self._clients:
                return None
            client = next(iter(self._clients))
            if self._passed_over < _PATIENCE:
                turns = (name for name, jobs in self._clients.items() if jobs[0].task == at_hand)
                chosen = next(turns, client)
                self._passed_over = 0 if chosen == client else self._passed_over + 1
                client = chosen
            else:
                self._passed_over = 0
            jobs = self._clients.pop(client)
            job = jobs.popleft()
            if jobs:
                self._clients[client] = jobs  # behind the others
            return job

    def close(self, discard: bool) -> None:
        """No more jobs; with `discard`, those that wait are cancelled."""
        with self._changed:
            self._closed = True
            if discard:
                for jobs in self._clients.values():
                    for job in jobs:
                        job.result.cancel()
                self._clients.clear()
            self._changed.notify_all()


class EvaluationPool:
    """Evaluates what is submitted from any thread; what was evaluated before is not evaluated again."""

    def __init__(self, evaluator: Evaluator, lanes: int | None = None) -> None:
        """`lanes`: evaluations under way at a time; as many as there are CPUs and memory for by default."""
        self.lanes = lanes or _lanes()
        self._queue = _Queue()
        self._lock = threading.Lock()
        self._known: dict[Hashable, Future[Evaluation]] = {}
        self._threads = [
            threading.Thread(target=self._work, args=(evaluator.sibling(),), name=f"lane-{number}")
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

        The same question asked twice is one evaluation with one future. What ended with an error may be
        asked again. Raises RuntimeError once the pool is closed.
        """
        job = _Job(task, candidate, tuple(baselines), effort)
        with self._lock:
            known = self._known.get(job.key)
            if known is not None and not known.cancelled() and not (known.done() and known.exception()):
                return known
            self._queue.put(client, job)
            self._known[job.key] = job.result
        return job.result

    def _work(self, evaluator: Evaluator) -> None:
        at_hand, gate = None, evaluator.pool.gate
        try:
            while (job := self._queue.take(at_hand)) is not None:
                if not job.result.set_running_or_notify_cancel():
                    continue
                at_hand = job.task
                try:
                    with gate.lane():
                        found = evaluator.evaluate(job.task, job.candidate, job.baselines, job.effort)
                except BaseException as error:  # noqa: BLE001 - it is whoever asked who must know
                    job.result.set_exception(error)
                else:
                    job.result.set_result(found)
        finally:
            with gate.lane():
                evaluator.close()

    def close(self, discard: bool = False) -> None:
        """Wait for what was submitted; with `discard`, only for what is under way."""
        self._queue.close(discard)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(discard=kind is not None)


def _lanes() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // _LANE_BYTES))
