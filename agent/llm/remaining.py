"""Rest of a task's limits in words, for a model that spends them itself.

    Budget: $0.41 of $2.00 spent; 3 of 20 evaluations, 2 of 8 timed files and 21 of 40 answers left.

What has no limit is left out.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kernelwright.agent.llm.budget import Budget
from kernelwright.agent.spending.budget import Evaluations, SpendingLimits


@dataclass(frozen=True)
class Remaining:
    """`seconds`: that a task has taken so far."""

    budget: Budget
    evaluations: Evaluations
    run: SpendingLimits
    task: SpendingLimits
    seconds: Callable[[str], float]
    began: float = field(default_factory=time.monotonic)

    def line(self, task: str, timed: int, rounds: int, answers: int, turns: int) -> str:
        """Return what is left for a task, `timed` files of `rounds` and `answers` of `turns` included."""
        spent = [*self._dollars(task), *self._tokens(task)]
        left = [*self._evaluations(task), f"{max(0, rounds - timed)} of {rounds} timed files"]
        left += [f"{max(0, turns - answers)} of {turns} answers", *self._minutes(task)]
        said = f"{', '.join(left[:-1])} and {left[-1]} left"
        spent_so_far = f"{', '.join(spent)} spent; " if spent else ""
        return f"Budget: {spent_so_far}{said}."

    def _dollars(self, task: str) -> list[str]:
        said = []
        if self.task.usd is not None:
            said.append(f"${self.budget.spent_on(task).usd:.2f} of ${self.task.usd:.2f}")
        if self.run.usd is not None:
            said.append(f"${self.budget.spent_on(None).usd:.2f} of ${self.run.usd:.2f} for all tasks")
        return said

    def _tokens(self, task: str) -> list[str]:
        said = []
        if self.task.tokens is not None:
            said.append(f"{self.budget.spent_on(task).tokens} of {self.task.tokens} tokens")
        if self.run.tokens is not None:
            said.append(f"{self.budget.spent_on(None).tokens} of {self.run.tokens} tokens for all tasks")
        return said

    def _evaluations(self, task: str) -> list[str]:
        left = self.evaluations.left(task)
        most = self.task.evaluations
        if left is None:
            return []
        return [f"{left} of {most} evaluations" if most is not None else f"{left} evaluations"]

    def _minutes(self, task: str) -> list[str]:
        said = []
        if (own := self.task.minutes) is not None:
            said.append(f"{max(0.0, own - self.seconds(task) / 60):.1f} of {own:g} minutes")
        if (run := self.run.minutes) is not None:
            gone = (time.monotonic() - self.began) / 60
            said.append(f"{max(0.0, run - gone):.1f} of {run:g} minutes for all tasks")
        return said
