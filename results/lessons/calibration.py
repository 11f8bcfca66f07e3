"""Calibration of predicted gains: advice predicts the next candidate's gain, and its timing measures it.

An idea often fails at first, and is right once it is corrected. Its gain is then the time of the last
correct candidate before it / the time of the first correct one after it:

    10 µs correct ──► the idea, build error ──► repaired, wrong output ──► corrected, 8 µs: gain 1.25

is one prediction, measured as 1.25, and neither three nor two failures.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelwright.kernelbench.records import Advice, Candidate, Evaluation, Verdict
from kernelwright.results import formatting
from kernelwright.results.store.records import RecordedAttempt

FASTER = 1.02  # a gain below this is noise
RANGES = ((0.0, 1.0), (1.0, 1.1), (1.1, 1.5), (1.5, 2.0), (2.0, math.inf))  # of predicted gains
COLUMNS = (
    "predicted gain",
    "predictions",
    "timed",
    "faster",
    "predicted for these, median",
    "measured, median",
    "off by a factor, median",
)


class Evaluated(Protocol):
    """A candidate that was evaluated, in a list of those of its task in the order they were tried."""

    @property
    def candidate(self) -> Candidate: ...

    @property
    def evaluation(self) -> Evaluation: ...


@dataclass(frozen=True)
class Prediction:
    """A predicted gain over a timed candidate, and the measured gain; None if the new candidate failed."""

    predicted: float
    came: float | None


@dataclass(frozen=True)
class Calibration:
    """Predicted and measured gains. Gains are time before / after."""

    predictions: tuple[Prediction, ...]

    @property
    def came(self) -> list[float]:
        """Measured gains of the predictions whose candidate was timed."""
        return [each.came for each in self.predictions if each.came is not None]

    @property
    def faster(self) -> int:
        return sum(came > FASTER for came in self.came)

    @property
    def off_by(self) -> float | None:
        """Median factor between the predicted and the measured gain, either way."""
        timed = [each for each in self.predictions if each.came is not None]
        off = [abs(math.log(each.predicted / each.came)) for each in timed if each.came]
        return math.exp(statistics.median(off)) if off else None

    def within(self, low: float, high: float) -> "Calibration":
        """Return the predictions of gains from `low` to below `high`."""
        return Calibration(tuple(each for each in self.predictions if low <= each.predicted < high))

    def cells(self, name: str) -> tuple[str, ...]:
        """Return one row of a table, in the order of COLUMNS."""
        predicted = [each.predicted for each in self.predictions if each.came is not None]
        return (
            name,
            str(len(self.predictions)),
            str(len(self.came)),
            str(self.faster),
            formatting.ratio(statistics.median(predicted) if predicted else None),
            formatting.ratio(statistics.median(self.came) if self.came else None),
            formatting.ratio(self.off_by),
        )

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row for each range with predictions, and one for all."""
        rows = []
        for low, high in RANGES:
            found = self.within(low, high)
            if found.predictions:
                rows.append(found.cells(f"{low:g} to {high:g}" if math.isfinite(high) else f"from {low:g}"))
        return [*rows, self.cells("all")]


def calibration(histories: Iterable[Sequence[RecordedAttempt]]) -> Calibration | None:
    """Collect the predictions over the attempts of each task; None if there are none."""
    found = tuple(
        Prediction(predicted, measured_gain(attempt, tried))
        for attempts in histories
        for tried in [[attempt for attempt in attempts if not attempt.confirms]]
        for attempt in tried
        if (predicted := predicted_gain(attempt.advice)) is not None and not corrects(attempt, tried)
    )
    return Calibration(found) if found else None


def predicted_gain(advice: Advice | None) -> float | None:
    """Return the gain that advice predicts; None for a correction, which predicts none."""
    return advice.predicted_gain if advice is not None and advice.predicted_gain != 1.0 else None


def measured_gain(attempt: Evaluated, tried: Sequence[Evaluated]) -> float | None:
    """Return the time before / after a candidate's idea; None if there is no correct one before or after.

    Before: the last correct candidate that it was made from. After: itself, or the first correct one of those
    that it was corrected to.
    """
    number = _place(attempt, tried)
    before, after = _before(number, tried), _after(number, tried)
    if before is None or after is None:
        return None
    return gain(before.evaluation, after.evaluation)


def corrects(attempt: Evaluated, tried: Sequence[Evaluated]) -> bool:
    """Return True if a candidate was made from one that failed."""
    parents = _parents(_place(attempt, tried), tried)
    return bool(parents) and not any(_correct(tried[parent]) for parent in parents)


def gain(before: Evaluation, after: Evaluation) -> float | None:
    """Return the time of one candidate of a task / that of another; None if one of them has none.

    Both are relative to eager, timed side by side with each, since the machine's speed may have changed
    between them.
    """
    then, now = over_eager(before), over_eager(after)
    return now / then if then and now else None


def over_eager(evaluation: Evaluation) -> float | None:
    """Return the speedup of a correct candidate; None for any other, such as an implausible one."""
    speedup, correct = evaluation.speedup, evaluation.verdict is Verdict.correct
    return speedup.eager.median if correct and speedup and speedup.eager else None


def _place(attempt: Evaluated, tried: Sequence[Evaluated]) -> int:
    return next(number for number, other in enumerate(tried) if other is attempt)


def _correct(attempt: Evaluated) -> bool:
    return attempt.evaluation.verdict is Verdict.correct


def _parents(number: int, tried: Sequence[Evaluated]) -> list[int]:
    """Return the attempts that one was made from; if it names none, the last one timed before it."""
    named = tried[number].candidate.parents
    if named:
        return [other for other in range(number) if tried[other].candidate.sha256 in named]
    return [other for other in reversed(range(number)) if over_eager(tried[other].evaluation)][:1]


def _before(number: int, tried: Sequence[Evaluated]) -> Evaluated | None:
    """Return the last correct attempt among those that one was made from, in however many steps."""
    parents = _parents(number, tried)
    while parents:
        timed = [parent for parent in parents if over_eager(tried[parent].evaluation)]
        if timed:
            return tried[timed[0]]
        parents = sorted({before for parent in parents for before in _parents(parent, tried)})
    return None


def _after(number: int, tried: Sequence[Evaluated]) -> Evaluated | None:
    """Return an attempt if it is correct, else the first correct one of those it was corrected to."""
    failed = {tried[number].candidate.sha256}
    for attempt in tried[number:]:
        if attempt is not tried[number] and not failed & set(attempt.candidate.parents):
            continue
        if _correct(attempt):
            return attempt
        failed.add(attempt.candidate.sha256)
    return None
