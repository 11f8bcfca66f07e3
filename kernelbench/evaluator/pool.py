"""Pool of evaluations for searches and training: several run concurrently, and one at a time is timed.

Building and verifying run concurrently, in slots; while one slot is timed, the others are stopped, for a
timing that a compiler shares its cores with is worth nothing.
"""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Any, Self, TypeVar

from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.protocol import Measurement
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.machine import memory_bytes, usable_cpus
from kernelwright.kernelbench.records import Candidate, Evaluation, Target, Task, Work

T = TypeVar("T")
_SLOT_BYTES = 6 << 30  # of memory, that a slot's oracle, workers and their inputs and outputs may take
_SLOTS = 4  # by default, at most, as all others are stopped while one is timed; chosen by hand
_CPUS_OF_A_SLOT = (
    2  # oracle and candidate compute at the same time; two slots on two CPUs took longer than one
)
_SLOTS_ON_GPU = 2  # at most: every slot has an oracle, baselines and inputs on it
_PATIENCE = 8  # jobs on a task that is at hand that may go before a waiting one
_REMEMBERED = 10_000  # evaluations


@dataclass
class _Outcome:
    """Result of a job, and the clients that wait for it."""

    result: Future[Any] = field(default_factory=Future)  # no asker's own: see `_pass_on`
    answers: list[Future[Any]] = field(default_factory=list)

    @property
    def given_up(self) -> bool:
        return all(answer.cancelled() for answer in self.answers)


@dataclass
class _Job:
    task: Task
    do: Callable[[LocalEvaluator], Any]
    key: Hashable = None  # of what is not to be done twice
    outcome: _Outcome = field(default_factory=_Outcome)


class _Queue:
    """Jobs of several clients, who take turns however many jobs each has submitted."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._clients: dict[str, list[_Job]] = {}  # in the order of their turns
        self._passed_over = 0  # how often the oldest job of the client whose turn it was has had to wait
        self._closed = False

    def put(self, client: str, job: _Job) -> None:
        """Add a job. Raises RuntimeError once it is closed."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._clients.setdefault(client, []).append(job)
            self._changed.notify()

    def take(self, at_hand: Callable[[Task], bool]) -> _Job | None:
        """Return the next job; rather one of a task that is `at_hand`, whose oracle is up, but not for ever.

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

    def _chosen(self, at_hand: Callable[[Task], bool]) -> tuple[str, int]:
        """Return a client and the place of its job."""
        turn = next(iter(self._clients))
        if self._passed_over < _PATIENCE:
            for client, jobs in self._clients.items():
                for place, job in enumerate(jobs):
                    if at_hand(job.task):
                        self._passed_over = 0 if (client, place) == (turn, 0) else self._passed_over + 1
                        return client, place
        self._passed_over = 0
        return turn, 0

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


class EvaluationPool:
    """Evaluates what is submitted from any thread; what was evaluated before is not evaluated again."""

    def __init__(self, evaluator: LocalEvaluator, slots: int | None = None) -> None:
        """`slots`: evaluations under way at a time; a few, as CPUs and memory allow, by default."""
        on_gpu = evaluator.sessions.pool.device != "cpu"
        most = min(most_slots(), _SLOTS_ON_GPU if on_gpu else _SLOTS)
        self.slots = slots or max(1, min(usable_cpus() // _CPUS_OF_A_SLOT, most))
        self._evaluator = evaluator
        self._queue = _Queue()
        self._lock = threading.Lock()
        self._known: dict[Hashable, _Outcome] = {}  # the oldest first
        self._work: dict[tuple[str, str], Work] = {}
        # A GPU's memory is not counted here, and every session has inputs in it.
        self._session_cache = SessionCache(0 if on_gpu else max(0, memory_bytes() - self.slots * _SLOT_BYTES))
        self._threads = [
            threading.Thread(
                target=self._slot,
                args=(evaluator.sibling(self._session_cache),),
                name=f"slot-{number}",
                daemon=True,
            )
            for number in range(self.slots)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def timing_lock(self) -> TimingLock:
        """Lock that keeps all other slots stopped while one is timed."""
        return self._evaluator.sessions.pool.timing_lock

    @property
    def target(self) -> Target:
        return self._evaluator.target

    def submit(
        self,
        task: Task,
        candidate: Candidate,
        measurement: Measurement = Measurement(),
        client: str = "",
    ) -> Future[Evaluation]:
        """Return the evaluation to come, as of `LocalEvaluator.evaluate`; clients take turns.

        The same question asked twice is one evaluation. What ended with an error may be asked again.
        Cancelling gives up the answer; what everybody gave up before it began is not evaluated. Raises
        RuntimeError once the pool is closed.
        """
        key = task.id, task.sha256, candidate.sha256, candidate.language, measurement

        evaluate = methodcaller("evaluate", task, candidate, measurement)
        return self._submit(_Job(task, evaluate, key), client)

    def ask(self, task: Task, do: Callable[[LocalEvaluator], T], client: str = "") -> Future[T]:
        """Run `do` in a slot, with its sessions of tasks; the result is not remembered.

        Raises RuntimeError once the pool is closed; what waited then ends with CancelledError.
        """
        return self._submit(_Job(task, do), client)

    def evaluate(
        self,
        task: Task,
        candidate: Candidate,
        measurement: Measurement = Measurement(),
    ) -> Evaluation:
        """Wait for the result of `submit`, with the task as the client."""
        return self.submit(task, candidate, measurement, client=task.id).result()

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return self._evaluator.rejected(task, candidate, reason)

    def work(self, task: Task) -> Work:
        """Work of a task, as of `LocalEvaluator.work`; computed once for a task."""
        key = task.id, task.sha256
        if key not in self._work:
            self._work[key] = self.ask(task, lambda evaluator: evaluator.work(task), task.id).result()
        return self._work[key]

    def audit(self, task: Task) -> list[str]:
        """Sentences on a task, as of `LocalEvaluator.audit`, with the task as the client."""

        def inspect(evaluator: LocalEvaluator) -> tuple[list[str], Work]:
            return evaluator.audit(task), evaluator.work(task)

        findings, self._work[task.id, task.sha256] = self.ask(task, inspect, task.id).result()
        return findings

    def abort(self) -> None:
        """End all that is under way: who waits for it is told so. The pool is of no use afterwards."""
        self._queue.close(discard=True)
        self._evaluator.abort()

    def _submit(self, job: _Job, client: str) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            known = self._known.get(job.key) if job.key is not None else None
            if known is None:
                self._queue.put(client, job)
                known = job.outcome
                if job.key is not None:
                    self._remember(job)
            if not known.result.done():
                known.answers.append(answer)
        known.result.add_done_callback(partial(_pass_on, answer))
        return answer

    def _remember(self, job: _Job) -> None:
        self._known[job.key] = job.outcome
        while len(self._known) > _REMEMBERED and next(iter(self._known.values())).result.done():
            del self._known[next(iter(self._known))]

    def _given_up(self, job: _Job) -> bool:
        """Return True if nobody waits for it any more; then the next who asks begins again."""
        with self._lock:
            if not job.outcome.given_up:
                return False
            self._known.pop(job.key, None)
        return job.outcome.result.cancel()

    def _slot(self, evaluator: LocalEvaluator) -> None:
        with evaluator:
            while (job := self._queue.take(evaluator.sessions.holds)) is not None:
                if self._given_up(job):
                    continue
                try:
                    with evaluator.sessions.computing():
                        found = job.do(evaluator)
                        if self._session_cache.has_room:
                            evaluator.sessions.release()  # before whoever asked comes back with the next job
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
        with self._evaluator.sessions.computing():
            self._session_cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(discard=kind is not None)


def _pass_on(answer: Future[T], done: Future[T]) -> None:
    """One asker's `answer`, who may have given it up, is what came of a job."""
    if done.cancelled():
        answer.cancel()
    if not answer.set_running_or_notify_cancel():
        return
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


def most_slots() -> int:
    """Return the number of evaluations that this machine's memory allows at a time."""
    return max(1, memory_bytes() // _SLOT_BYTES)
