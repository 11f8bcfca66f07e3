"""From the judge's clock to speedups: the time per call of each block pair, ratios, bootstrap intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelbench.records import Interval

_RESAMPLES = 4000


@dataclass(frozen=True)
class BlockPair:
    """Seconds that N calls and 2N calls took one worker, within one round."""

    calls: int  # N
    short_s: float
    long_s: float

    @property
    def slope_s(self) -> float:
        """Seconds per call, without what a block costs once."""
        return (self.long_s - self.short_s) / self.calls

    @property
    def fixed_s(self) -> float:
        """What the block costs once, as these two times have it."""
        return max(0.0, 2 * self.short_s - self.long_s)


def call_seconds(pair: BlockPair, fixed_s: float) -> float:
    """Seconds per call; `fixed_s` is what a block of the eager baseline costs once.

    The slope alone could be forged by being slow in short blocks on purpose. So no more than twice the
    baseline's own fixed cost, a millisecond and 2% are believed to be fixed, and never more than three
    quarters of a block; the rest counts as work.
    """
    allowance = 2 * fixed_s + 1e-3 + 0.02 * pair.long_s
    work_s = max(pair.long_s - allowance, pair.long_s / 4)
    return max(pair.slope_s, work_s / (2 * pair.calls))


def interval(values: Sequence[float]) -> Interval:
    """The median with the 95% percentile interval of its bootstrap."""
    data = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(len(data))
    medians = np.median(generator.choice(data, (_RESAMPLES, len(data))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Interval(median=float(np.median(data)), low=float(low), high=float(high))


@dataclass(frozen=True)
class Rounds:
    """All block pairs of a timing, by worker: "candidate" and the baselines, "eager" among them."""

    pairs: Mapping[str, Sequence[BlockPair]]

    def seconds(self, worker: str) -> list[float]:
        """Seconds per call in each round."""
        reference = self.pairs["eager"]
        return [
            call_seconds(pair, eager.fixed_s)
            for pair, eager in zip(self.pairs[worker], reference, strict=True)
        ]

    def time_us(self, worker: str) -> Interval:
        return interval([1e6 * value for value in self.seconds(worker)])

    def speedup(self, baseline: str) -> Interval:
        ratios = zip(self.seconds(baseline), self.seconds("candidate"), strict=True)
        return interval([base / candidate for base, candidate in ratios])

    def fastest_baseline(self) -> str:
        names = [name for name in self.pairs if name != "candidate"]
        return min(names, key=lambda name: float(np.median(self.seconds(name))))
