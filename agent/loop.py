"""The loop: propose, evaluate, profile, advise, round by round; then measure the winner once more."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kernelwright.agent.abandonable_pool import abandonable_pool
from kernelwright.agent.budget import BudgetSpent, Evaluations
from kernelwright.agent.protocols import Attempt, Coder, NoCandidate, ProfilingEvaluator
from kernelwright.agent.search import Request, Search, Stop, best_of
from kernelwright.agent.tuner.advise import as_it_is, beliefs
from kernelwright.agent.tuner.gaussian_process import timed
from kernelwright.kernelbench.evaluator import SEARCH, Measurement
from kernelwright.kernelbench.records import Advice, Candidate, Evaluation, Stages, Task, Verdict


class Recorder(Protocol):
    """Keeps every attempt the moment it is finished."""

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None: ...


@dataclass
class Loop:
    """Optimizes one task after another. Everything it holds is shared by all tasks."""

    coders: Mapping[str, Coder]  # by the names that requests have for them
    search: Search
    evaluator: ProfilingEvaluator
    evaluations: Evaluations  # that may be spent
    baselines: Sequence[str]  # that the winner is held against; the search holds against eager
    recorder: Recorder
    out_of_time: Callable[[Task], str | None]  # why no further round of a task may start, or None

    def optimize(self, task: Task, history: Sequence[Attempt]) -> str:
        """Run the rounds that are left after `history` and confirm the winner; returns why it stopped.

        Raises TaskError when the task itself does not work, a ModelError when a model does not, BudgetSpent
        when nothing could be tried.
        """
        tried = list(history)
        while True:
            reason = self.out_of_time(task) or self.evaluations.spent(task.id)
            try:
                step = Stop(reason) if reason and tried else self.search.step(task, tried)
                if isinstance(step, Stop):
                    break
                if (reason := self.evaluations.spent(task.id)) is not None:
                    raise BudgetSpent(reason)
                self._try(task, tried, step[: self.evaluations.left(task.id)])
            except BudgetSpent as spent:
                if not tried:
                    raise
                step = Stop(str(spent))
                break
        confirmed = self._confirm(task, tried)
        self.evaluations.done(task.id)
        return step.reason if confirmed else f"{step.reason}; no evaluation was left to confirm the winner"

    def _try(self, task: Task, tried: list[Attempt], requests: Sequence[Request]) -> None:
        """Add an attempt for each request, if any, in their order; candidates are written side by side.

        Where a model fails, what others wrote has been kept with its answer, for when the run goes on.
        """
        writing = [partial(self._propose, task, tuple(tried[: r.seen]), r) for r in requests]
        if len(requests) == 1:
            tried.append(self._attempt(task, tried, requests[0].advice, writing[0]))
            return
        spent: BudgetSpent | None = None
        with abandonable_pool(max(1, len(requests)), "coder") as executor:
            written = [executor.submit(write) for write in writing]
            for request, candidate in zip(requests, written, strict=True):
                if (self.out_of_time(task) or self.evaluations.spent(task.id)) is not None:
                    return  # `optimize` says so
                try:
                    tried.append(self._attempt(task, tried, request.advice, candidate.result))
                except BudgetSpent as refusal:  # what the others wrote has been paid for
                    spent = spent or refusal
        if spent is not None:
            raise spent

    def _propose(self, task: Task, seen: Sequence[Attempt], request: Request) -> Candidate:
        return self.coders[request.coder].propose(task, seen, request.advice, request.sample)

    def _attempt(
        self, task: Task, tried: Sequence[Attempt], advice: Advice | None, write: Callable[[], Candidate]
    ) -> Attempt:
        try:
            candidate = write()
            evaluation = _repeated(candidate, tried) or self._evaluate(task, candidate, tried)
        except NoCandidate as none:
            candidate = none.candidate
            evaluation = self.evaluator.rejected(task, candidate, none.reason)
        attempt = Attempt(candidate, evaluation, self.evaluator.profile(task, candidate, evaluation), advice)
        self.recorder.attempt(task, len(tried), attempt, advice, confirms=False)
        return attempt

    def _evaluate(self, task: Task, candidate: Candidate, tried: Sequence[Attempt]) -> Evaluation:
        self.evaluations.begin(task.id)
        return self.evaluator.evaluate(
            task, candidate, Measurement(("eager",), SEARCH, _to_beat(task, tried))
        )

    def _confirm(self, task: Task, tried: Sequence[Attempt]) -> bool:
        """Measure the winner afresh against all baselines, and the runner-up, where that may be as fast.

        Where one fails the second time, the next best follows. False where too few evaluations are left to
        confirm any. The best of several noisy measurements is too good on average; these are not chosen by
        what they come to, but for the better of two.
        """
        left, confirmed = list(tried), list[Attempt]()
        while (winner := _winner(task, tried, left)) is not None:
            try:
                self.evaluations.begin_last(task.id)
                evaluation = self.evaluator.evaluate(
                    task, winner.candidate, Measurement(tuple(self.baselines))
                )
            except BudgetSpent:  # on winners that failed
                return bool(confirmed)
            profile = self.evaluator.profile(task, winner.candidate, evaluation)
            attempt = Attempt(winner.candidate, evaluation, profile)
            self.recorder.attempt(task, len(tried), attempt, None, confirms=True)
            left = [other for other in left if other.candidate.sha256 != winner.candidate.sha256]
            if evaluation.verdict is Verdict.correct:
                confirmed.append(attempt)
                left = _rivals(task, evaluation, tried, left) if len(confirmed) == 1 else []
        if (best := best_of(confirmed)) is not None and best.candidate.schedule:
            self._give_way(task, tried, best)
        return True

    def _give_way(self, task: Task, tried: Sequence[Attempt], best: Attempt) -> None:
        """Measure the reference, to be submitted, where the builtin coder's best is slower for certain."""
        advice = as_it_is(best, tried)
        if advice is None:
            return
        coder = self.coders.get("builtin", self.coders[""])
        try:
            candidate = coder.propose(task, tried, advice, 0)
            self.evaluations.begin_last(task.id)
        except (NoCandidate, BudgetSpent):
            return
        evaluation = self.evaluator.evaluate(task, candidate, Measurement(tuple(self.baselines)))
        attempt = Attempt(candidate, evaluation, self.evaluator.profile(task, candidate, evaluation))
        self.recorder.attempt(task, len(tried), attempt, None, confirms=True)


def _repeated(candidate: Candidate, tried: Sequence[Attempt]) -> Evaluation | None:
    """What is known of a candidate that was tried before; it takes no time."""
    same = [a.evaluation for a in tried if a.candidate.sha256 == candidate.sha256]
    return same[0].model_copy(update={"stages": Stages()}) if same else None


def _winner(task: Task, tried: Sequence[Attempt], left: Sequence[Attempt]) -> Attempt | None:
    """The best of what is left; of the builtin coder's candidates by what is believed of them."""
    best, likely = best_of(left), _likely(task, tried)
    if best is None or best.candidate.sha256 not in likely:
        return best
    known = (attempt for attempt in left if attempt.candidate.sha256 in likely)
    return max(known, key=lambda attempt: likely[attempt.candidate.sha256])


def _rivals(
    task: Task, winner: Evaluation, tried: Sequence[Attempt], left: Sequence[Attempt]
) -> list[Attempt]:
    """The one attempt, if any, that may be faster than the winner was the second time, the likeliest."""
    if winner.speedup is None or winner.speedup.eager is None:
        return []
    likely = _likely(task, tried)
    found: list[tuple[float, Attempt]] = []
    for attempt in left:
        speedup = attempt.evaluation.speedup.eager if attempt.evaluation.speedup is not None else None
        right = attempt.evaluation.verdict is Verdict.correct
        if right and speedup is not None and speedup.high > winner.speedup.eager.median:
            found.append((likely.get(attempt.candidate.sha256, speedup.median), attempt))
    return [max(found, key=lambda pair: pair[0])[1]] if found else []


def _to_beat(task: Task, tried: Sequence[Attempt]) -> float:
    """The speedup over eager of the best so far, which the next one is held against."""
    best = best_of(tried)
    speedup = best.evaluation.speedup if best is not None else None
    if best is None or speedup is None or speedup.eager is None:
        return 0.0
    return _likely(task, tried).get(best.candidate.sha256, speedup.eager.median)


def _likely(task: Task, tried: Sequence[Attempt]) -> dict[str, float]:
    """Speedups over eager of the builtin coder's candidates, by what is believed of them."""
    known = timed(tried)
    if any(a.evaluation.speedup is None or a.evaluation.speedup.eager is None for a in known) or not known:
        return {}
    speeds = beliefs(task, tried).speeds([attempt.candidate.schedule for attempt in known])
    return {a.candidate.sha256: math.exp(speed) for a, speed in zip(known, speeds, strict=True)}


def deadline(max_minutes: float | None) -> Callable[[], str | None]:
    """A budget that runs out `max_minutes` from now."""
    end = None if max_minutes is None else time.monotonic() + 60 * max_minutes

    def check() -> str | None:
        return f"{max_minutes:g} minutes are over" if end is not None and time.monotonic() > end else None

    return check
