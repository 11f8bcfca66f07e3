"""Best of n samples, without advice."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search.base import Request, Stop, StopRules
from kernelwright.kernelbench.records import Task


@dataclass(frozen=True)
class BestOfN:
    """All candidates at a time, without advice: what more samples gain, beside what a judge does."""

    rules: StopRules

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        left = range(len(history), self.rules.rounds)
        return [Request(sample=number) for number in left] or Stop(f"{self.rules.rounds} candidates")
