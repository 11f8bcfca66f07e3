"""A pool of evaluations that stores results in a file: each kernel is measured once, whoever wrote it.

So policies, random schedules and enumeration are compared on the same measurements, and what was killed
resumes without measuring again.
"""

import threading
from concurrent.futures import Future
from pathlib import Path

from pydantic import ValidationError

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Record, Task
from kernelwright.profiling.records import Profile
from kernelwright.results.store.encoding import record_text
from kernelwright.results.store.lines import append, whole_lines
from kernelwright.rl_training.environment.grader import Pool


class _Line(Record):
    task: str
    asked: str
    evaluation: Evaluation


class MeasuredPool:
    """Thread-safe pool with a file of results. Raises StorageError if the file cannot be read or written."""

    def __init__(self, pool: Pool, path: Path) -> None:
        self._pool = pool
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], Evaluation] = {}
        if path.exists():
            self._read()

    def __len__(self) -> int:
        return len(self._known)

    def submit(
        self,
        task: Task,
        candidate: Candidate,
        measurement: Measurement = Measurement(),
        client: str = "",
    ) -> Future[Evaluation]:
        key = task.id, candidate.sha256, _asked(measurement)
        found: Future[Evaluation] = Future()
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            found.set_result(known)
            return found
        asked = self._pool.submit(task, candidate, measurement, client)
        asked.add_done_callback(lambda done: self._pass_on(key, done, found))
        found.add_done_callback(lambda given_up: asked.cancel() if given_up.cancelled() else None)
        return found

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return self._pool.rejected(task, candidate, reason)

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile | None:
        return self._pool.profile(task, candidate, evaluation)

    def _pass_on(
        self, key: tuple[str, str, str], done: Future[Evaluation], found: Future[Evaluation]
    ) -> None:
        if found.cancelled():
            return
        try:
            evaluation = done.result()
            self._remember(key, evaluation)
        except Exception as error:  # noqa: BLE001 - whoever waits is to be told
            found.set_exception(error)
        else:
            found.set_result(evaluation)

    def _remember(self, key: tuple[str, str, str], evaluation: Evaluation) -> None:
        with self._lock:
            if key not in self._known:
                append(self._path, record_text(_Line(task=key[0], asked=key[2], evaluation=evaluation)))
                self._known[key] = evaluation

    def _read(self) -> None:
        for number, text in enumerate(whole_lines(self._path), 1):
            try:
                line = _Line.model_validate_json(text)
            except ValidationError as error:
                raise StorageError(
                    f"{self._path} entry {number} is damaged", "delete it to measure again"
                ) from error
            self._known[line.task, line.evaluation.candidate, line.asked] = line.evaluation


def _asked(measurement: Measurement) -> str:
    """Return the key that tells evaluations of the same kernel apart."""
    effort, to_beat = measurement.effort, measurement.to_beat
    timed = effort.model_dump_json() if effort is not None else "as the protocol says"
    names = ", ".join(measurement.baselines)
    return f"{names}; {timed}" + (f"; to beat {to_beat}" if to_beat is not None else "")
