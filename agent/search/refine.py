"""Refinement: a candidate a round, each from the judge's advice on those before it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from kernelwright.agent.protocols import Attempt, BranchingJudge, Judge
from kernelwright.agent.search.base import Request, Stop, StopRules
from kernelwright.kernelbench.records import Advice, Task


@dataclass(frozen=True)
class Refine:
    """One candidate a round, each from the Judge's advice on those before it.

    The judge chooses what to go on from, the best or a failure to be fixed; `from_latest` always takes the
    last one, as CudaForge does, for comparison. Then the judge must be a BranchingJudge.
    """

    judge: Judge
    rules: StopRules
    from_latest: bool = False

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        if not history:
            return [Request()]
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        advice: Advice | None
        if self.from_latest:
            advice = cast(BranchingJudge, self.judge).advise_on(task, history, history[-1], ())
        else:
            advice = self.judge.advise(task, history)
        if advice is None:
            return Stop("the judge has nothing left to try")
        return [Request(advice, sample=len(history), seen=len(history))]
