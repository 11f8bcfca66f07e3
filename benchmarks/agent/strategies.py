"""Searches over the schedules of a task that look measurements up instead of making them."""

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from benchmarks.agent.schedules import HELD, ScheduleTable, seen_speedup
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.advise import RulesJudge, untried
from kernelwright.agent.tuner.gaussian_process import timed
from kernelwright.agent.tuner.posterior import posterior
from kernelwright.kernelbench.records import Advice

LONGEST = 40  # candidates of a search that does not stop by itself
_PATIENCE = 6  # moves in a row without a gain, after which a random search stops

Trace = list[tuple[Attempt, str]]  # attempts in order, each with the candidate to be submitted after it


class Strategy(Protocol):
    def search(self, table: ScheduleTable, start: Attempt, never_stop: bool) -> Trace:
        """Return the trace of a search. `never_stop`: go on where it would stop by itself."""
        ...


@dataclass(frozen=True)
class FromJudge:
    """The rules judge. `blind`: without profiles."""

    blind: bool = False

    def search(self, table: ScheduleTable, start: Attempt, never_stop: bool) -> Trace:
        judge = RulesJudge(hold=HELD)
        if never_stop:
            judge = RulesJudge(hold=HELD, worth_a_try=0.0, near_ceiling=math.inf)
        trace: Trace = []
        attempt: Attempt | None = self._shown(start)
        while attempt is not None and len(trace) < LONGEST:
            history = [*(each for each, _ in trace), attempt]
            best = timed(history)[posterior(history).best]
            trace.append((attempt, best.candidate.sha256))
            advice = judge.advise(table.task, history)
            followed = advice is not None and "kernels" not in advice.schedule
            attempt = self._shown(table.follow(history, advice)) if advice is not None and followed else None
        return trace

    def _shown(self, attempt: Attempt | None) -> Attempt | None:
        return replace(attempt, profile=None) if attempt is not None and self.blind else attempt


@dataclass(frozen=True)
class RandomMoves:
    """Random moves from the fastest schedule measured, until several in a row have brought no gain."""

    seed: int

    def search(self, table: ScheduleTable, start: Attempt, never_stop: bool) -> Trace:
        random = Random(f"{table.task.id} {self.seed}")
        history = [start]
        trace = [(start, start.candidate.sha256)]
        while len(trace) < LONGEST:
            best = max(history, key=seen_speedup)
            if not never_stop and len(history) - history.index(best) > _PATIENCE:
                break
            tried = [dict(attempt.candidate.schedule) for attempt in history]
            moves = [m for m in untried(best.candidate, tried) if m.rule.knob not in HELD]
            if not moves:
                break
            move = random.choice(moves)
            advice = Advice(
                bottleneck="", method="", plan="", predicted_gain=1.0, schedule={move.knob: move.new},
                about=best.candidate.sha256,
            )  # fmt: skip
            attempt = table.follow(history, advice)
            if attempt is None:
                break
            history.append(attempt)
            trace.append((attempt, max(history, key=seen_speedup).candidate.sha256))
        return trace


class NoSearch:
    """The schedule to begin with, submitted as it is."""

    def search(self, table: ScheduleTable, start: Attempt, never_stop: bool) -> Trace:
        return [(start, start.candidate.sha256)]
