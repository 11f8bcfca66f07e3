"""Requests of searches, rules for stopping, and the best attempt of a history."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.records import Advice, Record, Task, Verdict
from kernelwright.profiling.roofline import in_words


@dataclass(frozen=True)
class Request:
    """Ask the coder for a candidate, with this advice; the first time there is none.

    `sample` tells apart what is asked for at a time, `seen` is how much of the history the coder knows then,
    `coder` which of several it is.
    """

    advice: Advice | None = None
    sample: int = 0
    seen: int = 0
    coder: str = ""


@dataclass(frozen=True)
class Stop:
    reason: str


class Search(Protocol):
    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        """Return the requests to make now, all at a time, given what was tried; at least one.

        Raises what a judge does: a ModelError, BudgetSpent.
        """
        ...


class StopRules(Record):
    """When a task has had enough, beside what its run may spend."""

    rounds: int
    target_speedup: float | None = None  # over eager; the interval's lower bound must reach it
    patience: int | None = None  # rounds without a gain
    near_ceiling: float = 0.95  # share of the speed of light

    def reached(self, history: Sequence[Attempt]) -> str | None:
        """Which rule says stop, in words; None to go on."""
        best = best_of(history)
        if best is not None:
            low = lower_bound(best)
            if self.target_speedup is not None and low >= self.target_speedup:
                return f"at least {low:.2f} times as fast as eager, {self.target_speedup:g} was asked for"
            light = best.profile.speed_of_light if best.profile is not None else None
            if best.profile is not None and light is not None and light >= self.near_ceiling:
                return in_words(best.profile)
        if len(history) >= self.rounds:
            return f"{self.rounds} rounds"
        if history and _needs_a_gpu(history[-1]):
            return "right, but what it takes cannot be timed here: the kernels need a GPU"
        since = len(history) - 1 - _last_gain(history) if history else 0
        if self.patience is not None and since >= self.patience:
            return f"no gain in {since} rounds"
        return None


def best_of(history: Sequence[Attempt]) -> Attempt | None:
    """The correct attempt with the highest lower bound of its speedup over eager."""
    correct = [attempt for attempt in history if attempt.evaluation.verdict is Verdict.correct]
    return max(correct, key=lower_bound, default=None)


def lower_bound(attempt: Attempt) -> float:
    """Lower bound of the 95% interval of the speedup over eager; 0.0 if unmeasured."""
    speedup = attempt.evaluation.speedup
    return speedup.eager.low if speedup is not None and speedup.eager is not None else 0.0


def _needs_a_gpu(attempt: Attempt) -> bool:
    """Return True if its kernels gave right answers and there is nothing to time them on."""
    evaluation = attempt.evaluation
    if evaluation.correctness is None:  # they did not run, for one
        return False
    of_gpu = attempt.candidate.language in ("triton", "cuda")
    return evaluation.verdict is Verdict.unmeasured and of_gpu and evaluation.target.device == "cpu"


def _last_gain(history: Sequence[Attempt]) -> int:
    """The last round whose interval lies above the best median before it; 0 for none."""
    last, best = 0, 0.0
    for number, attempt in enumerate(history):
        speedup = attempt.evaluation.speedup
        if attempt.evaluation.verdict is not Verdict.correct or speedup is None or speedup.eager is None:
            continue
        if speedup.eager.low > best:
            last = number
        best = max(best, speedup.eager.median)
    return last
