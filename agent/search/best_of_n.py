"""Best of n samples, without advice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search.base import (
    RegisteredSearch,
    Request,
    Stop,
    StopOptions,
    StopRules,
    Team,
    without_advice,
)
from kernelwright.agent.search.rounds import rounds_of
from kernelwright.kernelbench.records import Task


@dataclass(frozen=True)
class BestOfN(RegisteredSearch):
    """All candidates at a time, without advice: what more samples gain, beside what a judge does."""

    name: ClassVar[str] = "best-of-n"
    works_with: ClassVar[frozenset[str]] = frozenset({"llm"})

    rules: StopRules

    @classmethod
    def begin(cls, options: StopOptions, team: Team) -> Self:
        return cls(options.stop_rules)

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        rounds = rounds_of(history)
        left = range(len(rounds), self.rules.rounds)
        return [without_advice(rounds, number) for number in left] or Stop(f"{self.rules.rounds} candidates")
