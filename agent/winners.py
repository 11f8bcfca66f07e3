"""Choice of the winner among noisy measurements, of which a posterior corrects some."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from kernelwright.agent.protocols import Attempt, NoCandidate
from kernelwright.agent.search import best_of
from kernelwright.agent.spending.budget import BudgetSpent
from kernelwright.kernelbench.records import Candidate, Verdict


def confirm(
    tried: Sequence[Attempt],
    expected: Mapping[str, float],
    measure: Callable[[Candidate], Attempt],
    fallbacks: Iterable[Callable[[Attempt], Candidate | None]],
) -> bool:
    """Measure the winner again, and the runner-up if that may be as fast; then what a coder falls back to.

    Where one fails the second time, the next best follows. False where too few evaluations are left to
    confirm any. The best of several noisy measurements is too good on average; these are not chosen by
    what they come to, but for the better of two. `expected`: speedups over eager, by sha256.
    """
    left, confirmed = list(tried), list[Attempt]()
    try:
        while (best := winner(left, expected)) is not None:
            attempt = measure(best.candidate)
            left = [other for other in left if other.candidate.sha256 != best.candidate.sha256]
            if attempt.evaluation.verdict is Verdict.correct:
                confirmed.append(attempt)
                left = rivals(attempt, left, expected) if len(confirmed) == 1 else []
    except BudgetSpent:  # on winners that failed
        return bool(confirmed)
    if (best := best_of(confirmed)) is not None:
        with suppress(NoCandidate, BudgetSpent):
            if (candidate := next(filter(None, (each(best) for each in fallbacks)), None)) is not None:
                measure(candidate)
    return True


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
