"""Headroom of a task: what is left to gain up to its roofline, and which share of it each round has closed.

Speeds are logarithms of speedups over eager. Eager takes 80 µs and the roofline's floor is 20 µs, so there is
log 4 = 1.39 to gain. A round that fails closes nothing of it; one whose kernel takes 40 µs closes half. One
whose kernel takes 100 µs closes nothing either, but the next one has a better standing to begin from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search import rounds_of
from kernelwright.kernelbench.speed_of_light import BEYOND, trusted_share
from kernelwright.results.lessons.calibration import FASTER, over_eager

_UNKNOWN = math.log(2)  # the headroom of a task in which nothing was timed; chosen by hand
_NEAR = 0.9  # share of the roofline from which eager leaves too little to gain
_STALE = 3  # rounds without progress, from which further ones make no difference


class Standing(NamedTuple):
    """Start of a round: the best kernel so far against eager, and the rounds since it was found."""

    best: Literal["none", "slower", "faster"] = "none"
    stale: int = 0


_NOTHING = Standing()


class RoundGain(NamedTuple):
    """Standing before a round, and the share of the headroom that it closed: 0 for a failure."""

    standing: Standing
    closed: float


@dataclass(frozen=True)
class Headroom:
    """`left`: logarithm of the speedup from what a task has to its roofline.

    What a task has is its best kernel, or eager while that is faster.
    """

    left: float = _UNKNOWN
    standing: Standing = _NOTHING
    rounds: tuple[RoundGain, ...] = ()

    @classmethod
    def of(cls, history: Sequence[Attempt], free_author: str | None = None) -> "Headroom":
        """Return the headroom after a history. `free_author`: the coder whose rounds are not counted.

        Repairs belong to the round of what they repair; seeds are no rounds.
        """
        share = eager_share(history)
        left = _UNKNOWN if share is None else -math.log(min(share, 1.0))
        best, standing, gains = -math.inf, _NOTHING, list[RoundGain]()
        rounds = rounds_of(history)
        for attempt in (*rounds.seeds, *rounds.last):
            speedup = over_eager(attempt.evaluation)
            speed = math.log(speedup) if speedup else -math.inf
            gain = max(0.0, speed - max(0.0, best))
            if attempt.candidate.author != free_author and attempt.candidate.origin != "seed":
                gains.append(RoundGain(standing, min(1.0, gain / left) if left > 0 else 0.0))
            stale = 0 if speed > best + math.log(FASTER) else min(_STALE, standing.stale + 1)
            best, left = max(best, speed), max(0.0, left - gain)
            if best > -math.inf:
                standing = Standing("faster" if best > 0 else "slower", stale)
            else:
                standing = Standing("none", stale)
        return cls(left, standing, tuple(gains))


def eager_share(history: Sequence[Attempt]) -> float | None:
    """Return the share of the roofline that eager reaches, by the first attempt that tells; None if none."""
    for attempt in history:
        share, speedup = trusted_share(attempt.evaluation), over_eager(attempt.evaluation)
        if share and speedup and share / speedup <= BEYOND:
            return share / speedup
    return None


def near_roofline(share: float | None) -> str | None:
    """Return why a task is not worth a model's rounds, by the share of the roofline that eager reaches."""
    if share is None or share < _NEAR:
        return None
    return f"eager already runs at {share:.0%} of what the roofline allows"
