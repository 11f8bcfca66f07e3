"""Every schedule of the builtin coder, in a random order."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Self

from kernelwright.agent.builtin.schedule import legal, name_of
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search.base import RegisteredSearch, Request, Stop, StopOptions, StopRules, Team
from kernelwright.kernelbench.records import Advice, Task


@dataclass(frozen=True)
class Exhaustive(RegisteredSearch):
    """Every schedule of the builtin coder, in a random order, until there are no more or no more rounds.

    What searches find is held against it. Schedules follow from each other by one knob; some have the same
    code as one before, which is not evaluated again.
    """

    name: ClassVar[str] = "exhaustive"
    works_with: ClassVar[frozenset[str]] = frozenset({"builtin"})

    rules: StopRules  # of which the number of rounds counts
    hold: Set[str] = frozenset()  # knobs that stay as they are, by their names without the kernel

    @classmethod
    def begin(cls, options: StopOptions, team: Team) -> Self:
        return cls(options.stop_rules, team.hold)

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        if not history:
            return [Request()]
        if len(history) >= self.rules.rounds:
            return Stop(f"{self.rules.rounds} rounds")
        schedules = [a.candidate.schedule for a in history]
        known = [*schedules, *(a.advice.schedule for a in history if a.advice is not None)]
        asked = {frozenset(schedule.items()) for schedule in known}
        others = dict.fromkeys(
            frozenset({**each.schedule, knob: value}.items())
            for each in (attempt.candidate for attempt in history)
            for knob in each.schedule
            if name_of(knob) not in {"kernels", *self.hold}
            for value in each.alternatives.get(knob, legal(knob))
        )
        left = sorted(sorted(each) for each in others if each not in asked)
        if not left:
            return Stop("every schedule has been tried")
        chosen = Random(f"{task.sha256} {len(history)}").choice(left)
        advice = Advice(
            bottleneck="not asked",
            method="try every schedule",
            plan=", ".join(f"{knob}={value}" for knob, value in chosen),
            predicted_gain=1.0,
            schedule=dict(chosen),
        )
        return [Request(advice, sample=len(history), seen=len(history))]
