"""Scores of replies in the form that verl expects."""

from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.outcome import Outcome
from kernelwright.rl_training.trajectory import Turn


class NoVerdict(Exception):  # noqa: N818 - what happened
    """A reply without a verdict, from which nothing is to be learned.

    verl treats an exception in a rollout as a failure of that rollout: it is left out of its group, whose
    mean is that of the others. A number would be a reward.
    """


class Scored(Record):
    """A graded reply. `score`: its credit, including the discounted rewards of later turns; or None."""

    score: float | None
    outcome: Outcome

    def numbers(self) -> dict[str, float]:
        """Return the numbers for verl, which needs the same keys every time. Raises NoVerdict."""
        if self.score is None:
            raise NoVerdict(self.outcome.reason or "the evaluator has no verdict")
        outcome = self.outcome
        return {
            "score": self.score,
            "correct": float(outcome.kind == "correct"),
            "cheated": float(outcome.kind == "cheated"),
            "decoy": float(outcome.decoy()),
            "speedup": outcome.low("eager") or 0.0,  # its lower bound
        }


def scored(turn: Turn, credit: float | None) -> Scored:
    return Scored(score=credit, outcome=turn.outcome)
