"""Calibration of predicted gains: advice predicts the next candidate's gain, and its timing measures it."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.records import Advice, Evaluation, Verdict
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
        Prediction(predicted, measured_gain(attempt, attempts))
        for attempts in histories
        for attempt in attempts
        if (predicted := predicted_gain(attempt.advice)) is not None and not attempt.confirms
    )
    return Calibration(found) if found else None


def predicted_gain(advice: Advice | None) -> float | None:
    """Return the gain that advice predicts; None for a correction, which predicts none."""
    return advice.predicted_gain if advice is not None and advice.predicted_gain != 1.0 else None


def measured_gain(attempt: RecordedAttempt, attempts: Sequence[RecordedAttempt]) -> float | None:
    """Return the time of the candidate's parent / its own; None if one of them has none."""
    parent = next((other for other in _parents(attempt, attempts) if over_eager(other.evaluation)), None)
    if parent is None or attempt.confirms:
        return None
    return gain(parent.evaluation, attempt.evaluation)


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


def _parents(attempt: RecordedAttempt, attempts: Sequence[RecordedAttempt]) -> list[RecordedAttempt]:
    """Return the recorded attempts it was made from; if it names none, the last one timed before it."""
    earlier = [other for other in attempts if other.id < attempt.id]
    if attempt.candidate.parents:
        return [other for other in earlier if other.candidate.sha256 in attempt.candidate.parents]
    return [other for other in reversed(earlier) if over_eager(other.evaluation)][:1]
