"""Queue of a server: requests wait in it, clients take turns, and equal requests are done once.

    accept ──► ledger ──► a client's jobs ──► worker threads ──► ledger ──► those who wait

A job is what one or several equal requests ask for. A request which the evaluator's machinery fails is tried
again; one that was begun `TRIES` times, by whatever the server ended with it, has no verdict.
"""

import asyncio
import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from kernelwright.kernelbench.errors import InfrastructureError, KernelwrightError, StorageError, UsageError
from kernelwright.kernelbench.remote.wire import (
    ENDED,
    EvaluationRequest,
    EvaluationResult,
    NoVerdictCause,
    State,
)
from kernelwright.rl_training.serving.evaluator.grading import PreparedRequest
from kernelwright.rl_training.serving.evaluator.ledger import Ledger, LedgerEntry, NewEntry

TRIES = 3
_MOST_RETRY_AFTER_S = 60
_INSIST_S = 5.0
_REMEMBERED = 50  # durations, of which the time to wait is guessed
_log = logging.getLogger("kernelwright")


class QueueFull(Exception):  # noqa: N818 - a state, which passes
    """No room for the requests; there may be some after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the queue is full; try again in {seconds} s")
        self.seconds = seconds


class KeyTakenError(UsageError):
    """A key that names another request."""


class Graders(Protocol):
    """Protocol of `grading.RequestGrader`."""

    def prepared(self, request: EvaluationRequest) -> PreparedRequest: ...

    def __call__(self, asked: PreparedRequest) -> EvaluationResult: ...

    def without_verdict(self, task: str, cause: NoVerdictCause, reason: str) -> EvaluationResult: ...


@dataclass
class QueuedJob:
    """Equal requests, by their ids with the seconds since the epoch when each came."""

    asked: PreparedRequest
    client: str
    requests: dict[str, float] = field(default_factory=dict)
    tries: int = 0
    running: bool = False


class EvaluationQueue:
    """Thread-safe; `wait` and `changes` are for the event loop. `observe` is told of each result."""

    def __init__(
        self,
        ledger: Ledger,
        grade: Graders,
        workers: int,
        capacity: int,
        observe: Callable[[EvaluationResult], None] = lambda result: None,
    ) -> None:
        """Begin with what the ledger has left. `capacity`: requests that may wait or run."""
        self._ledger, self._grade, self._capacity, self._observe = ledger, grade, capacity, observe
        self._changed = threading.Condition()
        self._jobs: dict[str, QueuedJob] = {}  # by digest
        self._turns: dict[str, deque[QueuedJob]] = {}  # that wait; the next client first
        self._of: dict[str, QueuedJob] = {}  # by the ids of requests
        self._watchers: dict[str, list[Callable[[str], None]]] = {}
        self._took: deque[float] = deque(maxlen=_REMEMBERED)
        self._closed = False
        for entry in ledger.open():
            self._restore(entry)
        self._threads = [
            threading.Thread(target=self._work, name=f"request-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        with self._changed:
            return sum(len(job.requests) for job in self._jobs.values() if not job.running)

    @property
    def running(self) -> int:
        """Number of requests that are being done."""
        with self._changed:
            return sum(len(job.requests) for job in self._jobs.values() if job.running)

    def accept(
        self, requests: Sequence[EvaluationRequest], client: str, batch: str | None = None
    ) -> list[EvaluationResult]:
        """Accept requests, all or none.

        Raises NotAllowedError, UsageError, KeyTakenError for a key of another request, QueueFull.
        """
        asked = [self._grade.prepared(request) for request in requests]
        with self._changed:  # none of these ends in between
            new = self._new_entries(asked, client)
            entries = self._ledger.add(new, client, batch)
            for each, entry in zip(asked, entries, strict=True):
                if entry.state == "queued" and entry.id not in self._of:
                    self._put(each, entry)
            self._changed.notify_all()
        for result in filter(None, (each.result for each in new)):
            self._observe(result)
        return [self.state_of(entry) for entry in entries]

    def _new_entries(self, asked: Sequence[PreparedRequest], client: str) -> list[NewEntry]:
        """Return entries for requests, with the results of equal ones. Raises KeyTakenError, QueueFull."""
        new: list[NewEntry] = []
        keys: dict[str, str] = {}
        fresh = 0
        for each in asked:
            key = each.request.key
            known = self._ledger.of_key(client, key)
            named = known.digest if known is not None else keys.get(key or "")
            if named not in (None, each.digest):
                raise KeyTakenError(f"the key {key} names another request", "give each its own key")
            if key is not None:
                keys[key] = each.digest
            done = self._ledger.done(each.digest) if known is None else None
            fresh += known is None and done is None
            result = None if done is None else done.model_copy(update={"cached": True, "seconds": None})
            new.append(NewEntry(key, each.digest, each.request.model_dump_json(), result))
        if self._closed:
            raise QueueFull(_MOST_RETRY_AFTER_S)
        if fresh and len(self._of) + fresh > self._capacity:
            raise QueueFull(self._retry_after())
        return new

    def find(self, id: str, client: str) -> EvaluationResult | None:
        """Return the state of a client's request; None if there is none with this id."""
        entry = self._ledger.entry(id, client)
        return None if entry is None else self.state_of(entry)

    def batch(self, id: str, client: str) -> list[EvaluationResult]:
        """Return the states of the requests of a client's batch; none if there is no such batch."""
        return [self.state_of(entry) for entry in self._ledger.batch(id, client)]

    def state_of(self, entry: LedgerEntry) -> EvaluationResult:
        """Return the state of a request."""
        if entry.result is not None:
            return EvaluationResult.model_validate_json(entry.result)
        with self._changed:
            job = self._of.get(entry.id)
        state: State = "running" if job is not None and job.running else "queued"
        task = EvaluationRequest.model_validate_json(entry.request).task
        name = task if isinstance(task, str) else task.name
        return self._grade.without_verdict(name, "evaluator", "").model_copy(
            update={"id": entry.id, "state": state, "no_verdict": None}
        )

    def cancel(self, id: str, client: str) -> EvaluationResult | None:
        """Give up a request; one that has ended stays as it is. Returns its state, None if there is none."""
        found = self.find(id, client)
        if found is None or found.state in ENDED:
            return found
        with self._changed:
            self._end([(id, self._grade.without_verdict(found.task, "cancelled", "it was given up"))])
            job = self._of.pop(id, None)
            if job is not None:
                job.requests.pop(id, None)
                if not job.requests and not job.running:
                    self._drop(job)
        return self.find(id, client)

    async def wait(self, id: str, client: str, seconds: float) -> EvaluationResult | None:
        """Return the state of a request once it has ended, or after that time."""
        try:
            async with asyncio.timeout(seconds), aclosing(self.changes([id], client)) as changes:
                async for found in changes:
                    if found.state in ENDED:
                        return found
        except TimeoutError:
            pass
        return self.find(id, client)

    async def changes(self, ids: Sequence[str], client: str) -> AsyncGenerator[EvaluationResult, None]:
        """Yield the states of requests, and each again when it changes, until all have ended."""
        arrivals: asyncio.Queue[str] = asyncio.Queue()
        last: dict[str, State] = {}
        with self._watching(ids, arrivals):
            for id in ids:
                arrivals.put_nowait(id)
            left = set(ids)
            while left:
                found = self.find(id := await arrivals.get(), client)
                if found is None or found.state in ENDED:
                    if id not in left:
                        continue
                    left.discard(id)
                if found is not None and last.get(id) != found.state:
                    last[id] = found.state
                    yield found

    def stop(self) -> None:
        """Begin nothing more; the ledger keeps what is left, and who was to be told of its end is told so."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            watched = tuple(self._watchers)
        with suppress(StorageError):
            self._tell(watched)

    def close(self, seconds: float = 10.0) -> None:
        """Stop, and wait for what is under way, at most that long."""
        self.stop()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def when_ended(self, id: str, client: str, tell: Callable[[EvaluationResult], None]) -> None:
        """Have `tell` called once, with the result of a request, when it has ended; at once if it has.

        A request that a stopped server leaves to the next start has no verdict here.
        """

        def look(_: str = id) -> None:
            found = self.find(id, client)
            if found is None:
                return
            if found.state not in ENDED:
                if not self._closed:
                    return
                found = self._grade.without_verdict(found.task, "evaluator", "the server was stopped")
            with self._changed:
                watchers = self._watchers.get(id, [])
                if look not in watchers:
                    return  # another thread looked at the same time, and tells it
                watchers.remove(look)
                if not watchers:
                    self._watchers.pop(id, None)
            tell(found)

        with self._changed:
            self._watchers.setdefault(id, []).append(look)
        look()

    @contextmanager
    def _watching(self, ids: Sequence[str], arrivals: "asyncio.Queue[str]") -> Iterator[None]:
        """Have the ids of requests that change put into a queue of the running loop."""
        loop = asyncio.get_running_loop()

        def tell(id: str) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(arrivals.put_nowait, id)

        with self._changed:
            for id in ids:
                self._watchers.setdefault(id, []).append(tell)
        try:
            yield
        finally:
            with self._changed:
                for id in ids:
                    left = self._watchers.get(id, [])
                    left.remove(tell)
                    if not left:
                        self._watchers.pop(id, None)

    def _restore(self, entry: LedgerEntry) -> None:
        """Put what an earlier server left into the queue again."""
        try:
            asked = self._grade.prepared(EvaluationRequest.model_validate_json(entry.request))
        except (KernelwrightError, ValueError) as error:
            said = error.message if isinstance(error, KernelwrightError) else "it is of another version"
            self._end([(entry.id, self._grade.without_verdict("", "task", said))])
            return
        self._put(asked, entry)

    def _put(self, asked: PreparedRequest, entry: LedgerEntry) -> None:
        job = self._jobs.get(asked.digest)
        if job is None:
            job = self._jobs[asked.digest] = QueuedJob(asked, entry.client)
            self._turns.setdefault(entry.client, deque()).append(job)
        job.requests[entry.id] = entry.created
        job.tries = max(job.tries, entry.tries)
        self._of[entry.id] = job

    def _drop(self, job: QueuedJob) -> None:
        self._jobs.pop(job.asked.digest, None)
        waiting = self._turns.get(job.client)
        if waiting is not None and job in waiting:
            waiting.remove(job)
            if not waiting:
                del self._turns[job.client]

    def _next(self) -> QueuedJob | None:
        """Take a job of the client whose turn it is; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._turns or self._closed)
            if self._closed:
                return None
            client = next(iter(self._turns))
            waiting = self._turns.pop(client)
            job = waiting.popleft()
            if waiting:
                self._turns[client] = waiting  # behind the others
            job.running = True
            job.tries += 1
            ids = tuple(job.requests)
            self._insist(partial(self._ledger.count_tries, ids, 1))
        with suppress(StorageError):  # they are told again at its end
            self._tell(ids)
        return job

    def _insist(self, write: Callable[[], object]) -> None:
        """Write to the ledger once it can be written: its disk may be full for a while. Holds the lock."""
        while True:
            try:
                write()
                return
            except StorageError as error:
                if self._closed:
                    return  # the next start does it again
                _log.error(f"{error}; trying again every {_INSIST_S:g} s")
                self._changed.wait(_INSIST_S)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            began = time.time()
            try:
                result = self._result(job)
            except BaseException as error:  # noqa: BLE001 - a worker that dies takes no request with it
                _log.exception("a request failed")
                said = f"the server failed: {type(error).__name__}"
                result = self._grade.without_verdict(job.asked.task.id, "evaluator", said)
            if result is None:
                continue
            self._took.append(time.time() - began)
            with self._changed:
                self._jobs.pop(job.asked.digest, None)
                requests = dict(job.requests)
                for id in requests:
                    self._of.pop(id, None)
                named = [(id, _queued_for(result, began - came)) for id, came in requests.items()]
                self._insist(partial(self._end, named))

    def _result(self, job: QueuedJob) -> EvaluationResult | None:
        """Return what came of a job; None if it waits again, or was left for the next start."""
        task = job.asked.task.id
        if job.tries > TRIES:
            said = f"the server ended {TRIES} times while it evaluated this"
            return self._grade.without_verdict(task, "evaluator", said)
        try:
            return self._grade(job.asked)
        except InfrastructureError as error:
            with self._changed:
                if self._closed:  # it was stopped, and will be begun again
                    self._ledger.count_tries(tuple(job.requests), -1)
                    return None
                if job.tries >= TRIES:
                    return self._grade.without_verdict(task, "evaluator", error.message)
                job.running = False
                self._turns.setdefault(job.client, deque()).append(job)
                self._changed.notify_all()
            return None

    def _end(self, results: Sequence[tuple[str, EvaluationResult]]) -> None:
        """Write results into the ledger, then tell who waits."""
        named = [result.model_copy(update={"id": id}) for id, result in results]
        ended = set(self._ledger.end(named))
        for result in named:
            if result.id in ended:
                self._observe(result)
        self._tell([result.id for result in named])

    def _tell(self, ids: Sequence[str]) -> None:
        with self._changed:
            watching = [(watcher, id) for id in ids for watcher in self._watchers.get(id, ())]
        for watcher, id in watching:
            watcher(id)

    def _retry_after(self) -> int:
        """Guess the seconds until there is room: one evaluation's, as they come to an end one by one."""
        took = statistics.median(self._took) if self._took else 1.0
        return max(1, min(_MOST_RETRY_AFTER_S, round(took / max(1, len(self._threads)))))


def _queued_for(result: EvaluationResult, seconds: float) -> EvaluationResult:
    """Return a result with the time that its request waited before it was begun."""
    if result.seconds is None:
        return result
    queue = result.seconds.queue + max(0.0, seconds)
    return result.model_copy(update={"seconds": result.seconds.model_copy(update={"queue": queue})})
