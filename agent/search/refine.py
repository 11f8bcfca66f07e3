"""Refinement: a candidate a round, each from the judge's advice on those before it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self, cast

import typer

from kernelwright.agent.protocols import Attempt, BranchingJudge, Judge
from kernelwright.agent.search.base import (
    RegisteredSearch,
    Request,
    Stop,
    StopOptions,
    StopRules,
    Team,
    best_of,
    correct,
    stuck,
    without_advice,
)
from kernelwright.agent.search.rounds import rounds_of
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Advice, Task


class RefineOptions(StopOptions):
    refine_from: Annotated[Literal["best", "latest"], typer.Option(help="Refine from.")] = "best"


@dataclass(frozen=True)
class Refine(RegisteredSearch):
    """One candidate a round, each from the Judge's advice on those before it.

    The judge chooses what to go on from, the best or a failure to be fixed; `from_latest` always takes the
    last one, as CudaForge does, for comparison. Then the judge must be a BranchingJudge.
    """

    name: ClassVar[str] = "refine"
    works_with: ClassVar[frozenset[str]] = frozenset({"builtin", "llm"})

    judge: Judge
    rules: StopRules
    from_latest: bool = False

    @classmethod
    def begin(cls, options: RefineOptions, team: Team) -> Self:
        return cls(team.judge or team.tuner, options.stop_rules, options.refine_from == "latest")

    @staticmethod
    def check(options: RefineOptions, coder: str, timed: bool) -> None:
        if options.refine_from == "latest" and coder == "builtin":
            raise UsageError("--refine-from latest does not work with --coder builtin", "choose best")

    def advised_on(self, task: Task, history: Sequence[Attempt]) -> Sequence[Attempt]:
        if self.rules.reached(history) is not None or self._without_judge(history) is not None:
            return ()
        best = rounds_of(history).usable[-1] if self.from_latest else best_of(history)
        return correct([best] if best is not None else [])

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        request = self._without_judge(history)
        if request is not None:
            return [request]
        rounds = rounds_of(history)
        advice: Advice | None
        if self.from_latest:
            advice = cast(BranchingJudge, self.judge).advise_on(task, history, rounds.usable[-1], ())
        else:
            advice = self.judge.advise(task, history)
        if advice is None:
            return Stop("the judge has nothing left to try")
        return [Request(advice, sample=len(rounds), seen=len(history))]

    def _without_judge(self, history: Sequence[Attempt]) -> Request | None:
        """Return a request that no judge need be asked for; None where one must be.

        These are the first, the second where the first was shown a seed, one that begins afresh, and the last
        one again where its reply had no file.
        """
        rounds, usable = rounds_of(history), rounds_of(history).usable
        number, seen = len(rounds), len(history)
        if len(usable) < (2 if rounds.seeds else 1):
            first = without_advice(rounds, len(usable))
            return Request(sample=number, seen=seen, afresh=first.afresh)
        if stuck(rounds.seeds, usable) and not self.from_latest:
            return Request(sample=number, seen=seen, afresh=True)
        if not rounds.rounds[-1].usable:
            return Request(rounds.last[-1].advice, number, seen)
        return None
