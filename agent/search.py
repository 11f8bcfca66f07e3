"""Searches: what to try next, given all that was tried.

A search has no state. What it asks for follows from the history alone, so a run that was killed in the middle
of several requests made at a time goes on with those that are left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.protocols import Attempt, Judge, ManyMindedJudge
from agent.side_by_side import threads
from kernelbench.records import Advice, Record, Task, Verdict


@dataclass(frozen=True)
class Request:
    """Ask the coder for a candidate, with this advice; the first time there is none.

    `sample` tells apart what is asked for at a time, `seen` is how much of the history the coder knows then.
    """

    advice: Advice | None = None
    sample: int = 0
    seen: int = 0


@dataclass(frozen=True)
class Stop:
    reason: str


class Search(Protocol):
    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        """What to ask for now, all at a time, given what was tried; at least one."""
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
            low = _lower_bound(best)
            if self.target_speedup is not None and low >= self.target_speedup:
                return f"at least {low:.2f} times as fast as eager, {self.target_speedup:g} was asked for"
            light = best.profile.speed_of_light if best.profile is not None else None
            if light is not None and light >= self.near_ceiling:
                return f"{100 * light:.0f}% of what the roofline allows"
        if len(history) >= self.rounds:
            return f"{self.rounds} rounds"
        if history and _needs_a_gpu(history[-1]):
            return "right, but what it takes cannot be timed here: the kernels need a GPU"
        since = len(history) - 1 - _last_gain(history) if history else 0
        if self.patience is not None and since >= self.patience:
            return f"no gain in {since} rounds"
        return None


@dataclass(frozen=True)
class Refine:
    """One candidate a round, each from the Judge's advice on those before it."""

    judge: Judge
    rules: StopRules

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        if not history:
            return [Request()]
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        advice = self.judge.advise(task, history)
        if advice is None:
            return Stop("the judge has nothing left to try")
        return [Request(advice, sample=len(history), seen=len(history))]


@dataclass(frozen=True)
class BestOfN:
    """All candidates at a time, without advice: what more samples gain, beside what a judge does."""

    rules: StopRules

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        left = range(len(history), self.rules.rounds)
        return [Request(sample=number) for number in left] or Stop(f"{self.rules.rounds} candidates")


@dataclass(frozen=True)
class Beam:
    """In every generation several pieces of advice on each of the best few; the first has no advice.

    As CudaForge's and KernelAgent's beams do. While nothing is correct, the last few are corrected.
    """

    judge: ManyMindedJudge
    rules: StopRules
    width: int = 3  # attempts that are gone on from
    advices: int = 2  # on each

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        begun, size = 0, min(self.width, self.rules.rounds)  # of the generation under way
        while begun + size <= len(history):
            begun += size
            before = history[:begun]
            size = min(len(self._parents(before)) * self._each(before), self.rules.rounds - begun)
            if size <= 0:
                return Stop(f"{self.rules.rounds} rounds")
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        return self._generation(task, history[:begun], size)[len(history) - begun :]

    def _generation(self, task: Task, before: Sequence[Attempt], size: int) -> list[Request]:
        if not before:
            return [Request(sample=number) for number in range(size)]

        def advised(parent: Attempt) -> list[Advice]:
            found: list[Advice] = []
            for _ in range(self._each(before)):
                found.append(self.judge.advise_on(task, before, parent, found))
            return found

        parents = self._parents(before)
        with threads(len(parents), "judge") as executor:
            advice = [one for found in executor.map(advised, parents) for one in found]
        begun = len(before)
        return [Request(one, begun + number, seen=begun) for number, one in enumerate(advice[:size])]

    def _parents(self, history: Sequence[Attempt]) -> list[Attempt]:
        """The best few, each file once; the last few while none is correct."""
        correct = [a for a in history if a.evaluation.verdict is Verdict.correct]
        ranked = sorted(correct, key=_lower_bound, reverse=True) or list(reversed(history))
        unique: dict[str, Attempt] = {}
        for attempt in ranked:
            unique.setdefault(attempt.candidate.sha256, attempt)
        return list(unique.values())[: self.width]

    def _each(self, history: Sequence[Attempt]) -> int:
        return self.advices if best_of(history) is not None else 1


def best_of(history: Sequence[Attempt]) -> Attempt | None:
    """The correct attempt with the highest lower bound of its speedup over eager."""
    correct = [attempt for attempt in history if attempt.evaluation.verdict is Verdict.correct]
    return max(correct, key=_lower_bound, default=None)


def _needs_a_gpu(attempt: Attempt) -> bool:
    evaluation = attempt.evaluation
    unmeasured = evaluation.verdict is Verdict.unmeasured
    return unmeasured and attempt.candidate.language == "triton" and evaluation.target.device == "cpu"


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


def _lower_bound(attempt: Attempt) -> float:
    speedup = attempt.evaluation.speedup
    return speedup.eager.low if speedup is not None and speedup.eager is not None else 0.0
