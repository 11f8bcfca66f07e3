"""Headroom of a task: what is left to gain up to its roofline, and which share of it each round has closed.

Speeds are logarithms of speedups over eager. Eager takes 80 µs and the roofline's floor is 20 µs, so there is
log 4 = 1.39 to gain. A round that fails closes nothing of it; one whose kernel takes 40 µs closes half.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search import rounds_of
from kernelwright.profiling.records import BEYOND
from kernelwright.results.lessons.calibration import over_eager

_UNKNOWN = math.log(2)  # the headroom of a task in which nothing was timed; chosen by hand
_NEAR = 0.9  # share of the roofline from which eager leaves too little to gain


@dataclass(frozen=True)
class Headroom:
    """`left`: logarithm of the speedup from what a task has to its roofline.

    What a task has is its best kernel, or eager while that is faster. `closed`: the share of what was left
    that each round closed, 0 for a failure.
    """

    left: float = _UNKNOWN
    closed: tuple[float, ...] = ()

    @classmethod
    def of(cls, history: Sequence[Attempt], author: str | None = None) -> "Headroom":
        """Return the headroom after a history. `author`: whose rounds are none, for they cost nothing.

        Repairs belong to the round of what they repair; seeds are no rounds.
        """
        share = eager_share(history)
        left = _UNKNOWN if share is None else -math.log(min(share, 1.0))
        best, closed = 0.0, list[float]()
        rounds = rounds_of(history)
        for attempt in (*rounds.seeds, *rounds.last):
            speedup = over_eager(attempt.evaluation)
            gain = max(0.0, math.log(speedup) - best) if speedup else 0.0
            if attempt.candidate.author != author and attempt.candidate.origin != "seed":
                closed.append(min(1.0, gain / left) if left > 0 else 0.0)
            best, left = best + gain, max(0.0, left - gain)
        return cls(left, tuple(closed))


def eager_share(history: Sequence[Attempt]) -> float | None:
    """Return the share of the roofline that eager reaches, by the first attempt that tells; None if none."""
    for attempt in history:
        light = attempt.profile.share_of_light if attempt.profile is not None else None
        speedup = over_eager(attempt.evaluation)
        if light and speedup and light / speedup <= BEYOND:
            return light / speedup
    return None


def near_roofline(share: float | None) -> str | None:
    """Return why a task is not worth a model's rounds, by the share of the roofline that eager reaches."""
    if share is None or share < _NEAR:
        return None
    return f"eager already runs at {share:.0%} of what the roofline allows"
