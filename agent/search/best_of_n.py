"""Best of n samples, without advice."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.protocols import Attempt
from agent.search.base import Request, Stop, StopRules
from kernelbench.records import Task


@dataclass(frozen=True)
class BestOfN:
    """All candidates at a time, without advice: what more samples gain, beside what a judge does."""

    rules: StopRules

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        left = range(len(history), self.rules.rounds)
        return [Request(sample=number) for number in left] or Stop(f"{self.rules.rounds} candidates")
