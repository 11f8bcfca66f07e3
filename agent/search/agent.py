"""Agent: one conversation a task, in which the model itself says what is checked, measured and profiled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import typer
from pydantic import Field

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search.base import RegisteredSearch, Request, Stop, StopOptions, StopRules, Team
from kernelwright.kernelbench.records import Task, Verdict


class AgentOptions(StopOptions):
    turns: Annotated[int, Field(ge=1), typer.Option(help="Answers of an agent.")] = 40
    context_tokens: Annotated[int, Field(ge=8000), typer.Option(hidden=True, help="Context of an agent.")] = (
        100_000
    )


@dataclass(frozen=True)
class Agent(RegisteredSearch):
    """Rules for the end of a conversation. Which file comes next is up to the model.

    Its rounds are the files that were timed. What is only checked, or fails, is limited by `turns`.
    """

    name: ClassVar[str] = "agent"
    works_with: ClassVar[frozenset[str]] = frozenset({"llm", "command"})

    rules: StopRules
    turns: int
    context_tokens: int

    @classmethod
    def begin(cls, options: AgentOptions, team: Team) -> Self:
        return cls(options.stop_rules, options.turns, options.context_tokens)

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        """Return a request, for the next turn of the conversation."""
        reason = self.rules.reached([attempt for attempt in history if was_measured(attempt)])
        return Stop(reason) if reason is not None else [Request(sample=len(history), seen=len(history))]


def was_measured(attempt: Attempt) -> bool:
    """Return True if an attempt was timed, or is right and cannot be timed here."""
    found = attempt.evaluation
    return found.timing is not None or (found.verdict is Verdict.unmeasured and not found.only_checked)
