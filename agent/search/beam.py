"""Beam search over candidates, several pieces of advice on each of the best few."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import typer
from pydantic import Field

from kernelwright.agent.abandonable_pool import abandonable_pool
from kernelwright.agent.protocols import Attempt, BranchingJudge
from kernelwright.agent.search.base import (
    RegisteredSearch,
    Request,
    Stop,
    StopOptions,
    StopRules,
    Team,
    best_of,
    correct,
    lower_bound,
)
from kernelwright.kernelbench.records import Advice, Task


class BeamOptions(StopOptions):
    beam_width: Annotated[int, Field(ge=1), typer.Option(help="Kernels that a beam keeps.")] = 3
    beam_advices: Annotated[int, Field(ge=1), typer.Option(help="Pieces of advice on each of them.")] = 2


@dataclass(frozen=True)
class Beam(RegisteredSearch):
    """Beam search: several pieces of advice on each of the best few, in every generation but the first.

    As CudaForge's and KernelAgent's beams do. While nothing is correct, the last few are corrected.
    """

    name: ClassVar[str] = "beam"
    works_with: ClassVar[frozenset[str]] = frozenset({"llm"})

    judge: BranchingJudge
    rules: StopRules
    width: int = 3  # attempts that are gone on from
    advices: int = 2  # on each

    @classmethod
    def begin(cls, options: BeamOptions, team: Team) -> Self:
        assert team.judge is not None
        return cls(team.judge, options.stop_rules, options.beam_width, options.beam_advices)

    def advised_on(self, task: Task, history: Sequence[Attempt]) -> Sequence[Attempt]:
        begun, size = self._under_way(history)
        return correct(self._parents(history[:begun])) if size > 0 and not self.rules.reached(history) else ()

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        begun, size = self._under_way(history)
        if size <= 0:
            return Stop(f"{self.rules.rounds} rounds")
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        return self._generation(task, history[:begun], size)[len(history) - begun :]

    def _under_way(self, history: Sequence[Attempt]) -> tuple[int, int]:
        """Return where in the history the generation under way begins, and its size; 0 if none is left."""
        begun, size = 0, min(self.width, self.rules.rounds)
        while begun + size <= len(history):
            begun += size
            before = history[:begun]
            size = min(len(self._parents(before)) * self._each(before), self.rules.rounds - begun)
            if size <= 0:
                break
        return begun, size

    def _generation(self, task: Task, before: Sequence[Attempt], size: int) -> list[Request]:
        if not before:
            return [Request(sample=number) for number in range(size)]

        def advised(parent: Attempt) -> list[Advice]:
            found: list[Advice] = []
            for _ in range(self._each(before)):
                found.append(self.judge.advise_on(task, before, parent, found))
            return found

        parents = self._parents(before)
        with abandonable_pool(len(parents), "judge") as executor:
            advice = [one for found in executor.map(advised, parents) for one in found]
        begun = len(before)
        return [Request(one, begun + number, seen=begun) for number, one in enumerate(advice[:size])]

    def _parents(self, history: Sequence[Attempt]) -> list[Attempt]:
        """Return the best few, each file once; the last few while none is correct."""
        ranked = sorted(correct(history), key=lower_bound, reverse=True) or list(reversed(history))
        unique: dict[str, Attempt] = {}
        for attempt in ranked:
            unique.setdefault(attempt.candidate.sha256, attempt)
        return list(unique.values())[: self.width]

    def _each(self, history: Sequence[Attempt]) -> int:
        return self.advices if best_of(history) is not None else 1
