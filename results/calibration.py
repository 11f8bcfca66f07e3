"""What predicted gains came to: advice says how much faster the next candidate will be; it is timed."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelbench.records import Verdict
from results.records import Attempt


@dataclass(frozen=True)
class Calibration:
    """Of all advice that predicted a gain over a candidate that had been timed."""

    predicted: int
    measured: int  # of them, whose candidate was timed
    faster: int  # of those, that gained anything
    off_by: float | None  # the median factor between what was predicted and what came, either way

    def __str__(self) -> str:
        said = f"{self.predicted} predicted, {self.measured} timed, {self.faster} of them faster than before"
        return said if self.off_by is None else f"{said}; off by a factor of {self.off_by:.2f} in the median"


def calibration(histories: Iterable[Sequence[Attempt]]) -> Calibration | None:
    """Over the attempts of each task; None where nothing was predicted."""
    pairs = [
        (attempt.advice.predicted_gain, measured_gain(attempt, attempts))
        for attempts in histories
        for attempt in attempts
        if attempt.advice is not None and attempt.advice.predicted_gain != 1.0 and not attempt.confirms
    ]
    if not pairs:
        return None
    timed = [(predicted, came) for predicted, came in pairs if came is not None]
    off = [abs(math.log(predicted / came)) for predicted, came in timed if predicted > 0]
    return Calibration(
        predicted=len(pairs),
        measured=len(timed),
        faster=sum(came > 1 for _, came in timed),
        off_by=math.exp(statistics.median(off)) if off else None,
    )


def measured_gain(attempt: Attempt, attempts: Sequence[Attempt]) -> float | None:
    """Time of the candidate it was made from / its own; None where one of them has none."""
    after = candidate_us(attempt)
    before = next((candidate_us(parent) for parent in _parents(attempt, attempts)), None)
    return before / after if before and after and not attempt.confirms else None


def candidate_us(attempt: Attempt) -> float | None:
    """Of a correct candidate: what cheated or was implausible has gained nothing."""
    timing = attempt.evaluation.timing
    return timing.candidate_us.median if timing and attempt.evaluation.verdict is Verdict.correct else None


def _parents(attempt: Attempt, attempts: Sequence[Attempt]) -> list[Attempt]:
    """The recorded attempts it was made from; where it names none, the last one timed before it."""
    earlier = [other for other in attempts if other.id < attempt.id]
    if attempt.candidate.parents:
        return [other for other in earlier if other.candidate.sha256 in attempt.candidate.parents]
    return [other for other in reversed(earlier) if candidate_us(other)][:1]
