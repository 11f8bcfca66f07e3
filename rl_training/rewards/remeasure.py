"""Surprising speedups are measured again, and the lower measurement counts.

After CUDA-L1 (arXiv:2507.14111).
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, PositiveFloat

from kernelwright.kernelbench.records import Evaluation, Interval, Record, Speedup, Verdict
from kernelwright.rl_training.outcome import outcome_of
from kernelwright.rl_training.rewards import state_io


class Doubt(Record):
    """Thresholds of surprise: speedup over eager, or over the best of the task so far."""

    over_eager: PositiveFloat = 3.0
    over_best: PositiveFloat = 2.0

    def about(self, low: float | None, best: float | None) -> bool:
        """Return True for a surprising speedup. `low`: its lower bound; None for an unknown value."""
        if low is None:
            return False
        return low > self.over_eager or (best is not None and low > self.over_best * best)


class _Best(Record):
    lows: dict[str, float] = Field(default_factory=dict)  # task id -> lower bound


class BestSoFar:
    """Largest lower bound over eager of each task. Thread-safe."""

    def __init__(self, lows: Mapping[str, float] | None = None) -> None:
        self._lows = dict(lows or {})
        self._lock = threading.Lock()

    def of(self, task: str) -> float | None:
        with self._lock:
            return self._lows.get(task)

    def learn(self, task: str, evaluation: Evaluation) -> None:
        low = outcome_of(evaluation).low("eager")
        if evaluation.verdict is not Verdict.correct or low is None:
            return
        self.raise_to(task, low)

    def raise_to(self, task: str, low: float) -> None:
        """Raise the best of a task to at least `low`."""
        with self._lock:
            self._lows[task] = max(low, self._lows.get(task, low))

    def save(self, path: Path) -> None:
        """Save the best. Raises StorageError."""
        with self._lock:
            state_io.write(path, _Best(lows=dict(self._lows)))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the best; empty if there is no such file. Raises StorageError."""
        found = state_io.read(path, _Best)
        return cls(found.lows if found is not None else None)


def lower(first: Evaluation, second: Evaluation) -> Evaluation:
    """Combine two measurements of one candidate: a failure counts, else the lower speedups."""
    assert first.candidate == second.candidate
    if second.verdict is not Verdict.correct or first.speedup is None or second.speedup is None:
        return second
    names = Speedup.model_fields
    speedups = {name: _lower(getattr(first.speedup, name), getattr(second.speedup, name)) for name in names}
    return second.model_copy(update={"speedup": Speedup(**speedups)})


def _lower(one: Interval | None, other: Interval | None) -> Interval | None:
    known = [interval for interval in (one, other) if interval is not None]
    return min(known, key=lambda interval: interval.low, default=None)
