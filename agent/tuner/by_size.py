"""Choice of a second candidate for some of a task's sizes.

Of three sizes, by elements of an input, the winner and another candidate were measured:

    elements   weight   winner, µs   winner over eager    other over eager
    1,000      8        5            0.9 [0.85, 0.95]     1.4 [1.3, 1.5]
    8,000      1        20           1.6 [1.5, 1.7]       1.2 [1.1, 1.3]
    64,000     1        150          1.9 [1.8, 2.0]       1.3 [1.2, 1.4]

The other is certainly faster at the smallest, and is worth 8 * 5 * (1 - 0.9 / 1.4) = 14 of 210 µs. It serves
up to 2,828 elements, half way on a log scale. The reference, whose speedup is 1, may be the other, too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.records import Candidate, Interval, SizeResult, Verdict

_WORTH = 1.02  # the least gain that is expected of all calls; less is not worth a second kernel
_EAGER = Interval(median=1.0, low=1.0, high=1.0)


@dataclass(frozen=True)
class Second:
    """Another candidate for some sizes; `candidate` is None for the reference.

    `below`: it serves what has at most so many `elements`, and the winner the rest; else it is the other way.
    """

    candidate: Candidate | None
    below: bool
    elements: int
    gain: float  # expected: the winner's time of all calls over that of both


def second(best: Attempt, history: Sequence[Attempt], elements: Sequence[int]) -> Second | None:
    """Return who may serve some sizes better than the winner; None if it is the fastest at all.

    `elements`: of an input, at each size of the task, of which the hidden ones decide nothing.
    """
    results = best.evaluation.sizes
    speeds = _speedups(best)
    seen = [i for i, result in enumerate(results) if not result.size.hidden]
    if speeds is None or len(seen) < 2:
        return None
    order = sorted(seen, key=lambda i: elements[i])
    weighted = {i: results[i].size.weight * _microseconds(results[i]) for i in seen}
    total = math.fsum(weighted.values())
    found: list[Second] = []
    for candidate, others in _others(best, history):
        for cut in range(1, len(order)):
            under, over = elements[order[cut - 1]], elements[order[cut]]
            if under == over:
                continue
            for below, served in ((True, order[:cut]), (False, order[cut:])):
                surer = any(others[i].low > speeds[i].high for i in served)
                if not surer or any(others[i].high < speeds[i].low for i in served):
                    continue
                now = math.fsum(weighted[i] * speeds[i].median / others[i].median for i in served)
                rest = math.fsum(weighted[i] for i in seen if i not in served)
                found.append(Second(candidate, below, math.isqrt(under * over), total / (now + rest)))
    chosen = max(found, key=lambda each: each.gain, default=None)
    return chosen if chosen is not None and chosen.gain >= _WORTH else None


def _others(best: Attempt, history: Sequence[Attempt]) -> Iterator[tuple[Candidate | None, list[Interval]]]:
    yield None, [_EAGER] * len(best.evaluation.sizes)
    for attempt in history:
        speeds = _speedups(attempt)
        if attempt.candidate.sha256 != best.candidate.sha256 and speeds is not None:
            yield attempt.candidate, speeds


def _speedups(attempt: Attempt) -> list[Interval] | None:
    """Return the speedups over eager at all sizes of a correct candidate that was timed at all."""
    evaluation = attempt.evaluation
    found = [each.speedup.eager if each.speedup is not None else None for each in evaluation.sizes]
    known = [speedup for speedup in found if speedup is not None]
    right = evaluation.verdict is Verdict.correct
    return known if right and known and len(known) == len(found) else None


def _microseconds(result: SizeResult) -> float:
    assert result.timing is not None  # it has a speedup
    return result.timing.candidate_us.median
