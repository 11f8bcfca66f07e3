"""From the judge's clock to speedups: the time per call of each block, ratios, bootstrap intervals.

A block of n calls takes F + n t seconds. F, what a block costs once (waking the worker, the message,
the answer), is measured where nobody gains from forging it: on blocks of no calls of the eager
baseline. So every block gives t by itself, (T - F) / n. The slope between a short and a long block,
(T(2N) - T(N)) / N, would need no F, but a candidate can forge it by being slow in short blocks, and it
triples the noise (docs/LOG.md has the numbers).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelbench.records import Interval

_RESAMPLES = 4000


@dataclass(frozen=True)
class TimedBlock:
    """Seconds that a block of `calls` took one worker."""

    calls: int
    seconds: float

    def call_s(self, empty_s: float) -> float:
        """Seconds a call; of a block no more than three quarters are taken off for what it costs once."""
        return max(self.seconds - empty_s, self.seconds / 4) / self.calls


def interval(values: Sequence[float]) -> Interval:
    """The median with the 95% percentile interval of its bootstrap."""
    data = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(len(data))
    medians = np.median(generator.choice(data, (_RESAMPLES, len(data))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Interval(median=float(np.median(data)), low=float(low), high=float(high))


@dataclass(frozen=True)
class Timings:
    """What was timed, by worker: "candidate" and the baselines, "eager" among them.

    `blocks[worker][i]` is phase i, in which every worker ran the same number of calls on the same inputs, one
    worker after the other. `empty_s`: seconds of blocks of no calls.
    """

    blocks: Mapping[str, Sequence[TimedBlock]]
    empty_s: Sequence[float]

    @property
    def fixed_s(self) -> float:
        return float(np.median(self.empty_s))

    def seconds(self, worker: str) -> list[float]:
        """Seconds per call in each phase."""
        return [block.call_s(self.fixed_s) for block in self.blocks[worker]]

    def time_us(self, worker: str) -> Interval:
        return interval([1e6 * value for value in self.seconds(worker)])

    def speedup(self, baseline: str) -> Interval:
        """The median over the phases of the ratio within a phase."""
        ratios = zip(self.seconds(baseline), self.seconds("candidate"), strict=True)
        return interval([base / candidate for base, candidate in ratios])

    def fastest_baseline(self) -> str:
        names = [name for name in self.blocks if name != "candidate"]
        return min(names, key=lambda name: float(np.median(self.seconds(name))))
