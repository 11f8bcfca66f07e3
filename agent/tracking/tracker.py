"""A tracker is told of all that a run records, in the background: it can be slow or fail, but harm no run."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from kernelwright.kernelbench.evaluator import TimingLock
from kernelwright.kernelbench.records import Advice, Candidate, Evaluation
from kernelwright.profiling.records import Profile
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall, RecordedAttempt

_MOST_WAITING = 10_000  # records; a tracker that is further behind misses some
_LAST_S = 10.0  # that trackers have once a run has ended


class Tracker(Protocol):
    """Receives records, in one thread. `at`: seconds since the epoch when a record was stored."""

    def call(self, call: LlmCall, at: float) -> None:
        """Receive a model's call that was answered, or failed."""
        ...

    def attempt(self, attempt: RecordedAttempt, at: float) -> None: ...

    def done(self, task: str, reason: str, at: float) -> None:
        """Receive the end of a task."""
        ...

    def close(self) -> None:
        """Send what has not been sent."""
        ...


class TrackedDatabase(RunDatabase):
    """Run database that tells trackers of what it has stored."""

    trackers: "tuple[BackgroundTracker, ...]" = ()

    def record_attempt(
        self,
        task_id: str,
        round: int,
        candidate: Candidate,
        advice: Advice | None,
        evaluation: Evaluation,
        profile: Profile | None,
        *,
        confirms: bool = False,
    ) -> int:
        number = super().record_attempt(
            task_id, round, candidate, advice, evaluation, profile, confirms=confirms
        )
        attempt = RecordedAttempt(
            id=number,
            task=task_id,
            round=round,
            confirms=confirms,
            candidate=candidate,
            advice=advice,
            evaluation=evaluation,
            profile=profile,
        )
        self._tell(lambda tracker, at: tracker.attempt(attempt, at))
        return number

    def record_llm_call(self, call: LlmCall) -> None:
        super().record_llm_call(call)
        self._tell(lambda tracker, at: tracker.call(call, at))

    def finish_task(self, task_id: str, stop_reason: str) -> None:
        super().finish_task(task_id, stop_reason)
        self._tell(lambda tracker, at: tracker.done(task_id, stop_reason, at))

    def _tell(self, record: Callable[[Tracker, float], None]) -> None:
        at = time.time()
        for tracker in self.trackers:
            tracker.tell(lambda each: record(each, at))


class BackgroundTracker:
    """A tracker in a thread of its own, to which no record is handed while a candidate is timed."""

    def __init__(
        self, name: str, begin: Callable[[], Tracker], timing_lock: TimingLock, say: Callable[[str], None]
    ) -> None:
        """`begin` connects it, in its thread; `say` is told once why it fails."""
        self._name, self._begin, self._timing_lock, self._say = name, begin, timing_lock, say
        self._records: queue.Queue[Callable[[Tracker], None]] = queue.Queue(_MOST_WAITING)
        self._ended, self._failed, self._missed = threading.Event(), False, 0
        self._thread = threading.Thread(target=self._run, name=f"tracking {name}", daemon=True)
        self._thread.start()

    def tell(self, record: Callable[[Tracker], None]) -> None:
        """Hand over a record. Never waits."""
        if self._failed:
            return
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._missed += 1

    def end(self) -> None:
        """Have it close once it was told all."""
        self._ended.set()
        self.tell(lambda tracker: None)  # wakes it

    def wait(self, until: float) -> None:
        """Wait for its end `until` then, by the monotonic clock."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive() and not self._failed:
            self._say(f"{self._name} is too slow: it was not told all of the run")
        elif self._missed:
            self._say(f"{self._name} was too slow: it was not told of {self._missed} records")

    def _run(self) -> None:
        try:
            tracker = self._begin()
            while not (self._ended.is_set() and self._records.empty()):
                record = self._records.get()
                with self._timing_lock.shared():  # waits for the end of a timing
                    pass  # and is not held longer: a slow tracker would keep the next one waiting
                record(tracker)
            tracker.close()
        except Exception as error:  # noqa: BLE001 - a tracker's library may raise anything
            self._failed = True
            self._say(f"{self._name} is told no more of this run: {' '.join(str(error).split())[:300]}")


@contextmanager
def tracking(
    trackers: Mapping[str, Callable[[], Tracker]],
    database: TrackedDatabase,
    timing_lock: TimingLock,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Tell trackers, given by name with what begins them, of all that is recorded in the block."""
    begun = tuple(BackgroundTracker(name, begin, timing_lock, say) for name, begin in trackers.items())
    database.trackers = begun
    try:
        yield
    finally:
        database.trackers = ()
        for each in begun:
            each.end()
        until = time.monotonic() + _LAST_S
        for each in begun:
            each.wait(until)
