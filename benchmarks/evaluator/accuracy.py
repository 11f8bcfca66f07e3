"""Errors of speedups whose true value is 1."""

import statistics
from collections.abc import Sequence

from benchmarks.publishing import percent
from kernelwright.kernelbench.records import Interval


def errors(speedups: Sequence[Interval]) -> list[float]:
    """Distances of the medians from 1."""
    return [abs(speedup.median - 1) for speedup in speedups]


def covering_one(speedups: Sequence[Interval]) -> str:
    """Count of the intervals that cover 1, as "48/50"."""
    return f"{sum(speedup.low <= 1 <= speedup.high for speedup in speedups)}/{len(speedups)}"


def half_width(interval: Interval) -> float:
    """Half the width of an interval, as a share of its median."""
    return (interval.high - interval.low) / 2 / interval.median


def median_and_largest(values: Sequence[float]) -> tuple[str, str]:
    return percent(statistics.median(values)), percent(max(values))
