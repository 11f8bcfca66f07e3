"""What policies and searches come to on tasks, within so many evaluations each.

A method gives files one after the other. Of its first n the fastest is picked by one measurement each, and
measured afresh, so that no method gains by having tried often on a noisy clock. Where none of n is right
the reference stays: 1.0. A policy's file that is wrong, or no file at all, is one of its n.
"""

import math
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from agent.llm.model import ReplyUnusable
from agent.llm.replies import candidate_source
from kernelbench.records import Candidate, Evaluation, Record
from rl_training.demo.data import DemoTask
from rl_training.demo.settings import AFRESH, ONCE
from rl_training.environment.world import Pool
from rl_training.outcome import Outcome, outcome_of


class Tried(Record):
    """A method's first n files for one task. `speedup`: of what was picked, measured afresh; 1.0 without
    any.
    """

    method: str
    seed: int
    task: str
    held: bool
    n: int
    valid: int  # of the n
    speedup: float


@dataclass(frozen=True)
class Trial:
    pool: Pool
    tries: Sequence[int]

    def of(
        self, method: str, seed: int, task: DemoTask, files: Sequence[Candidate | None]
    ) -> Iterator[Tried]:
        """`files`: in order; None for a reply without any."""
        asked = [self._measured(task, made) if made is not None else None for made in files]
        outcomes = [outcome_of(found.result()) if found is not None else None for found in asked]
        lows = [_low(outcome) for outcome in outcomes]
        for n in self.tries:
            first = lows[:n]
            if not first:
                continue
            best = max(range(len(first)), key=lambda place: first[place])
            picked = files[best] if first[best] > 0 else None
            yield Tried(
                method=method,
                seed=seed,
                task=task.drawn.name,
                held=task.held,
                n=n,
                valid=sum(low > 0 for low in first),
                speedup=self._afresh(task, picked) if picked is not None else 1.0,
            )

    def _measured(self, task: DemoTask, made: Candidate) -> Future[Evaluation]:
        return self.pool.submit(task.drawn.task, made, ("eager",), ONCE, client=task.drawn.name)

    def _afresh(self, task: DemoTask, made: Candidate) -> float:
        found = self.pool.submit(task.drawn.task, made, ("eager",), AFRESH, client=task.drawn.name).result()
        outcome = outcome_of(found)
        eager = outcome.speedup.eager if outcome.speedup is not None else None
        return eager.median if outcome.kind == "correct" and eager is not None else 1.0


def files_of(replies: Sequence[str]) -> list[Candidate | None]:
    return [_file(reply) for reply in replies]


def by_chance(task: DemoTask, seed: int, count: int) -> Sequence[Candidate]:
    """Schedules by chance, none twice."""
    return task.schedules.some(random.Random(f"{seed} {task.drawn.name}"), count)


def enumerated(task: DemoTask, count: int | None = None) -> Sequence[Candidate]:
    return list(task.schedules.all())[:count]


def geomean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(value) for value in values) / len(values)) if values else math.nan


def _file(reply: str) -> Candidate | None:
    try:
        return Candidate(source=candidate_source(reply, None), language="cpp", author="policy")
    except ReplyUnusable:
        return None


def _low(outcome: Outcome | None) -> float:
    """What a file is picked by; 0 where it is not right by kernels of its own."""
    if outcome is None or outcome.kind != "correct" or outcome.decoy():
        return 0.0
    return outcome.low("eager") or 0.0
