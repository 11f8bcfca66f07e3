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
    correct,
    lower_bound,
    without_advice,
)
from kernelwright.agent.search.rounds import Rounds, rounds_of
from kernelwright.kernelbench.records import Advice, Task

_FAILED_GENERATIONS = 3  # in a row, then the next one begins afresh


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
        before, size, afresh = self._under_way(rounds_of(history))
        if size <= 0 or afresh or self.rules.reached(history):
            return ()
        return correct(self._parents(before))

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        rounds = rounds_of(history)
        before, size, afresh = self._under_way(rounds)
        if size <= 0:
            return Stop(f"{self.rules.rounds} rounds")
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        if not before.usable:
            whole = [without_advice(before, len(before) + number) for number in range(size)]
        elif afresh:
            whole = [
                Request(sample=len(before) + number, seen=before.attempts, afresh=True)
                for number in range(size)
            ]
        else:
            whole = self._advised(task, history, before, size)
        return whole[len(rounds) - len(before) :]

    def _under_way(self, rounds: Rounds) -> tuple[Rounds, int, bool]:
        """Return what was before the generation under way, its size, and whether it begins afresh.

        The size is 0 if no generation is left. The first one begins afresh, and so does one after three
        without any correct file.
        """
        begun, size, afresh, generations = 0, min(self.width, self.rules.rounds), True, 0
        while begun + size <= len(rounds):
            begun, generations = begun + size, generations + 1
            before = rounds.first(begun)
            failed = not correct([*before.seeds, *before.last])
            afresh = not before.usable or (failed and generations % _FAILED_GENERATIONS == 0)
            parents = self.width if afresh else len(self._parents(before)) * self._each(before)
            size = min(parents, self.rules.rounds - begun)
            if size <= 0:
                break
        return rounds.first(begun), size, afresh

    def _advised(self, task: Task, history: Sequence[Attempt], before: Rounds, size: int) -> list[Request]:
        known = history[: before.attempts]

        def advised(parent: Attempt) -> list[Advice]:
            found: list[Advice] = []
            for _ in range(self._each(before)):
                found.append(self.judge.advise_on(task, known, parent, found))
            return found

        parents = self._parents(before)
        with abandonable_pool(len(parents), "judge") as executor:
            advice = [one for found in executor.map(advised, parents) for one in found]
        begun = len(before)
        return [Request(one, begun + number, seen=len(known)) for number, one in enumerate(advice[:size])]

    def _parents(self, before: Rounds) -> list[Attempt]:
        """Return the best few, each file once; the last few while none is correct."""
        ranked = sorted(correct([*before.seeds, *before.last]), key=lower_bound, reverse=True)
        unique: dict[str, Attempt] = {}
        for attempt in ranked or reversed(before.usable):
            unique.setdefault(attempt.candidate.sha256, attempt)
        return list(unique.values())[: self.width]

    def _each(self, before: Rounds) -> int:
        return self.advices if correct([*before.seeds, *before.last]) else 1
