"""Trial of a method on a task: its candidates in order, and what the best of the first n of them is.

Of n the fastest is picked by one measurement each, and another measurement of it counts, so that no method
gains by having tried often on a noisy clock. If none of n is correct the reference stays: 1.0.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.evaluator import Effort, Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Record
from kernelwright.results.store.encoding import record_text
from kernelwright.results.store.lines import append, whole_lines
from kernelwright.rl_training.demo.settings import AFRESH, ONCE
from kernelwright.rl_training.demo.trial import low_of, median_of, outcome
from kernelwright.rl_training.demo.wide.tasks import Kind, WideTask
from kernelwright.rl_training.environment.grader import Pool

SHARED = -1  # seed of methods that all seeds are compared with


class WideResult(Record):
    """A method's candidates for one task. `best_of`: n -> the speedup of the one picked among the first n."""

    claim: str  # sha256 of what was claimed before
    method: str
    seed: int
    task: str
    kind: Kind
    valid: int
    distinct: int  # files
    lows: tuple[float, ...]  # lower bounds, by which they are picked; 0 where one is not correct
    best_of: dict[int, float]


@dataclass(frozen=True)
class WideTrial:
    """Trial of methods on one pool."""

    pool: Pool

    def of(
        self, task: WideTask, candidates: Sequence[Candidate], tries: Sequence[int]
    ) -> tuple[tuple[float, ...], dict[int, float]]:
        """Return the lower bound of each candidate, and the best of the first n."""
        lows = tuple(low_of(outcome(each)) for each in [self.once(task, made) for made in candidates])
        picked = {n: _best(lows[:n]) for n in tries}
        again = {
            place: self.asked(task, candidates[place], AFRESH)
            for place in {place for place in picked.values() if place is not None}
        }
        values = {place: median_of(outcome(future)) for place, future in again.items()}
        return lows, {n: 1.0 if place is None else values[place] for n, place in picked.items()}

    def once(self, task: WideTask, made: Candidate) -> Future[Evaluation]:
        return self.asked(task, made, ONCE)

    def asked(self, task: WideTask, made: Candidate, effort: Effort) -> Future[Evaluation]:
        return self.pool.submit(task.task, made, self.measurement(effort), client=task.task.id)

    @staticmethod
    def measurement(effort: Effort) -> Measurement:
        return Measurement(("eager",), effort)


@dataclass
class ResultsFile:
    """Results as they come, one line each: what is known is not tried again. Thread-safe."""

    path: Path
    claim: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[tuple[str, int, str], WideResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = {(each.method, each.seed, each.task): each for each in results_in(self.path)}

    @property
    def all(self) -> list[WideResult]:
        return list(self._known.values())

    def keep(
        self,
        trial: WideTrial,
        method: str,
        seed: int,
        task: WideTask,
        tries: Sequence[int],
        candidates: Callable[[], Sequence[Candidate]],
    ) -> WideResult:
        """Return the result of a method, which is tried unless it is known. Raises StorageError."""
        key = method, seed, task.task.id
        if key not in self._known:
            made = candidates()
            lows, best_of = trial.of(task, made, tries)
            found = WideResult(
                claim=self.claim,
                method=method,
                seed=seed,
                task=task.task.id,
                kind=task.kind,
                valid=sum(low > 0 for low in lows),
                distinct=len({each.sha256 for each in made}),
                lows=lows,
                best_of=best_of,
            )
            with self._lock:
                append(self.path, record_text(found))
                self._known[key] = found
        return self._known[key]


def results_in(path: Path) -> list[WideResult]:
    """Return the results in a file; none if there is none. Raises StorageError."""
    found = []
    for number, line in enumerate(whole_lines(path), 1):
        try:
            found.append(WideResult.model_validate_json(line))
        except ValidationError as error:
            raise StorageError(
                f"{path} entry {number} is damaged", "delete it; what it held is tried again"
            ) from error
    return found


def _best(lows: Sequence[float]) -> int | None:
    """Return the place of the highest lower bound; None where nothing is correct."""
    best = max(range(len(lows)), key=lambda place: lows[place], default=None)
    return best if best is not None and lows[best] > 0 else None
