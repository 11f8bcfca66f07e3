"""Rewards relative to all earlier ones: clip((r - mu) / sigma, ±1.5), after CUDA-L1 (arXiv:2507.14111).

So that one task with a speedup of 40 does not dominate what is learned from the others. The statistics are
stored with the checkpoint, since a resumed run must use the same scale.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.rewards import state_io

CLIP = 1.5


class Running(Record):
    """Count, mean and summed squares of deviations, by Welford's rule."""

    count: NonNegativeInt = 0
    mean: float = 0.0
    squares: NonNegativeFloat = 0.0
    clip: PositiveFloat = CLIP

    @property
    def deviation(self) -> float:
        """Standard deviation of the sample; 0 if there are fewer than two rewards."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def having_seen(self, rewards: Iterable[float | None]) -> Self:
        """Return the statistics updated with these rewards; None is not counted."""
        count, mean, squares = self.count, self.mean, self.squares
        for reward in rewards:
            if reward is None:
                continue
            count += 1
            before = reward - mean
            mean += before / count
            squares += before * (reward - mean)
        return self.model_copy(update={"count": count, "mean": mean, "squares": squares})

    def smoothed(self, rewards: Sequence[float | None]) -> list[float | None]:
        """Return normalized rewards; None stays None, and all others are 0 while the spread is unknown."""
        sigma = self.deviation
        return [None if r is None else self._one(r, sigma) for r in rewards]

    def _one(self, reward: float, sigma: float) -> float:
        if sigma == 0:
            return 0.0
        return max(-self.clip, min(self.clip, (reward - self.mean) / sigma))

    def save(self, path: Path) -> None:
        """Save the statistics. Raises StorageError."""
        state_io.write(path, self)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the statistics of a run, or new ones if there are none. Raises StorageError."""
        return state_io.read(path, cls) or cls()
