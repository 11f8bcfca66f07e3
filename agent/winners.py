"""Choice of the winner among noisy measurements, of which a posterior corrects some."""

from collections.abc import Mapping, Sequence

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search import best_of
from kernelwright.kernelbench.records import Verdict


def winner(left: Sequence[Attempt], expected: Mapping[str, float]) -> Attempt | None:
    """Return the best attempt: as `expected` if the best measured one is among these, else as measured."""
    best = best_of(left)
    if best is None or best.candidate.sha256 not in expected:
        return best
    known = (attempt for attempt in left if attempt.candidate.sha256 in expected)
    return max(known, key=lambda attempt: expected[attempt.candidate.sha256])


def rivals(confirmed: Attempt, left: Sequence[Attempt], expected: Mapping[str, float]) -> list[Attempt]:
    """Return the attempt, if any, that is likeliest to be faster than the winner's second measurement."""
    speedup = confirmed.evaluation.speedup
    if speedup is None or speedup.eager is None:
        return []
    found: list[Attempt] = []
    for attempt in left:
        measured = attempt.evaluation.speedup.eager if attempt.evaluation.speedup is not None else None
        right = attempt.evaluation.verdict is Verdict.correct
        if right and measured is not None and measured.high > speedup.eager.median:
            found.append(attempt)
    return [max(found, key=lambda attempt: speedup_of(attempt, expected))] if found else []


def speedup_of(attempt: Attempt | None, expected: Mapping[str, float]) -> float:
    """Speedup over eager, expected or else measured; 0.0 if unmeasured."""
    speedup = attempt.evaluation.speedup if attempt is not None else None
    if attempt is None or speedup is None or speedup.eager is None:
        return 0.0
    return expected.get(attempt.candidate.sha256, speedup.eager.median)
