"""Searches: what to try next, given all that was tried."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.protocols import Attempt, Judge
from kernelbench.records import Advice, Task, Verdict


@dataclass(frozen=True)
class Request:
    """Ask the coder for a candidate, with this advice; the first time there is none."""

    advice: Advice | None


@dataclass(frozen=True)
class Stop:
    reason: str


class Refine:
    """One candidate a round, each from the Judge's advice on those before it."""

    def __init__(self, judge: Judge, rounds: int) -> None:
        self.judge = judge
        self.rounds = rounds

    def step(self, task: Task, history: Sequence[Attempt]) -> Request | Stop:
        if not history:
            return Request(None)
        if len(history) >= self.rounds:
            return Stop(f"{self.rounds} rounds")
        advice = self.judge.advise(task, history)
        return Request(advice) if advice is not None else Stop("the judge has nothing left to try")


def best_of(history: Sequence[Attempt]) -> Attempt | None:
    """The correct attempt with the highest lower bound of its speedup over eager."""
    correct = [attempt for attempt in history if attempt.evaluation.verdict is Verdict.correct]
    return max(correct, key=_lower_bound, default=None)


def _lower_bound(attempt: Attempt) -> float:
    speedup = attempt.evaluation.speedup
    return speedup.eager.low if speedup is not None and speedup.eager is not None else 0.0
