"""What predicted gains came to: advice says how much faster the next candidate will be; it is timed."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.records import Evaluation, Verdict
from kernelwright.results import formatting
from kernelwright.results.store.records import Attempt

FASTER = 1.02  # a gain below this is noise
RANGES = ((0.0, 1.0), (1.0, 1.1), (1.1, 1.5), (1.5, 2.0), (2.0, math.inf))  # of predicted gains
COLUMNS = (
    "predicted gain",
    "predictions",
    "timed",
    "faster",
    "predicted of these, median",
    "came to, median",
    "off by a factor, median",
)


@dataclass(frozen=True)
class Prediction:
    """A gain that was predicted over a candidate that had been timed, and what came: None where it failed."""

    predicted: float
    came: float | None


@dataclass(frozen=True)
class Calibration:
    """What predictions came to. Gains are time before / after."""

    predictions: tuple[Prediction, ...]

    @property
    def came(self) -> list[float]:
        """Of those whose candidate was timed."""
        return [each.came for each in self.predictions if each.came is not None]

    @property
    def faster(self) -> int:
        return sum(came > FASTER for came in self.came)

    @property
    def off_by(self) -> float | None:
        """The median factor between what was predicted and what came, either way."""
        timed = [each for each in self.predictions if each.came is not None]
        off = [abs(math.log(each.predicted / each.came)) for each in timed if each.came]
        return math.exp(statistics.median(off)) if off else None

    def within(self, low: float, high: float) -> "Calibration":
        """Of the gains predicted from `low` to below `high`."""
        return Calibration(tuple(each for each in self.predictions if low <= each.predicted < high))

    def cells(self, name: str) -> tuple[str, ...]:
        """One row of a table, in the order of COLUMNS."""
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
        """Those of each range that has any, and of all."""
        rows = []
        for low, high in RANGES:
            found = self.within(low, high)
            if found.predictions:
                rows.append(found.cells(f"{low:g} to {high:g}" if math.isfinite(high) else f"from {low:g}"))
        return [*rows, self.cells("all")]


def calibration(histories: Iterable[Sequence[Attempt]]) -> Calibration | None:
    """Over the attempts of each task; None where nothing was predicted."""
    found = tuple(
        Prediction(attempt.advice.predicted_gain, measured_gain(attempt, attempts))
        for attempts in histories
        for attempt in attempts
        if attempt.advice is not None and attempt.advice.predicted_gain != 1.0 and not attempt.confirms
    )
    return Calibration(found) if found else None


def measured_gain(attempt: Attempt, attempts: Sequence[Attempt]) -> float | None:
    """Time of the candidate it was made from / its own; None where one of them has none."""
    parent = next((other for other in _parents(attempt, attempts) if over_eager(other.evaluation)), None)
    if parent is None or attempt.confirms:
        return None
    return gain(parent.evaluation, attempt.evaluation)


def gain(before: Evaluation, after: Evaluation) -> float | None:
    """Time of one candidate of a task / that of another; None where one of them has none.

    By way of eager, which both were timed side by side with: the machine may have been slower meanwhile.
    """
    then, now = over_eager(before), over_eager(after)
    return now / then if then and now else None


def over_eager(evaluation: Evaluation) -> float | None:
    """Speedup of a correct candidate: what cheated or was implausible has gained nothing."""
    speedup, correct = evaluation.speedup, evaluation.verdict is Verdict.correct
    return speedup.eager.median if correct and speedup and speedup.eager else None


def _parents(attempt: Attempt, attempts: Sequence[Attempt]) -> list[Attempt]:
    """The recorded attempts it was made from; where it names none, the last one timed before it."""
    earlier = [other for other in attempts if other.id < attempt.id]
    if attempt.candidate.parents:
        return [other for other in earlier if other.candidate.sha256 in attempt.candidate.parents]
    return [other for other in reversed(earlier) if over_eager(other.evaluation)][:1]
