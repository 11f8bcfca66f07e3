"""The loop: propose, evaluate, profile, advise, round by round; then measure the winner once more."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from agent.llm.model import BudgetSpent, ModelError
from agent.protocols import Attempt, Coder, NoCandidate
from agent.search import Request, Search, Stop, best_of
from agent.side_by_side import threads
from kernelbench.evaluator import QUICK, Evaluator
from kernelbench.records import Advice, Candidate, Evaluation, Task, Verdict
from profiling.records import Profile
from profiling.roofline import roofline


class Recorder(Protocol):
    """Keeps every attempt the moment it is finished."""

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None: ...


@dataclass
class Loop:
    """Optimizes one task after another. Everything it holds is shared by all tasks."""

    coder: Coder
    search: Search
    evaluator: Evaluator
    baselines: Sequence[str]  # that the winner is held against; the search holds against eager
    recorder: Recorder
    out_of_time: Callable[[], str | None]  # why no further round may start, or None

    def optimize(self, task: Task, history: Sequence[Attempt]) -> str:
        """Run the rounds that are left after `history` and confirm the winner; returns why it stopped.

        Raises TaskError when the task itself does not work, a ModelError when a model does not.
        """
        tried = list(history)
        while True:
            reason = self.out_of_time()
            try:
                step = Stop(reason) if reason and tried else self.search.step(task, tried)
                if isinstance(step, Stop):
                    break
                self._try(task, tried, step)
            except BudgetSpent as spent:
                if not tried:
                    raise
                step = Stop(str(spent))
                break
        self._confirm(task, tried)
        return step.reason

    def _try(self, task: Task, tried: list[Attempt], requests: Sequence[Request]) -> None:
        """Add an attempt for each request, in their order; candidates are written side by side."""
        writing = [partial(self._propose, task, tuple(tried[: r.seen]), r) for r in requests]
        if len(requests) == 1:
            tried.append(self._attempt(task, tried, requests[0].advice, writing[0]))
            return
        failures: list[ModelError] = []
        with threads(len(requests), "coder") as executor:
            written = [executor.submit(write) for write in writing]
            for request, candidate in zip(requests, written, strict=True):
                if self.out_of_time() is not None:
                    return
                try:
                    tried.append(self._attempt(task, tried, request.advice, candidate.result))
                except ModelError as failure:  # what the others wrote has been paid for
                    failures.append(failure)
        if failures:
            raise failures[0]

    def _propose(self, task: Task, seen: Sequence[Attempt], request: Request) -> Candidate:
        return self.coder.propose(task, seen, request.advice, request.sample)

    def _attempt(
        self, task: Task, tried: Sequence[Attempt], advice: Advice | None, write: Callable[[], Candidate]
    ) -> Attempt:
        try:
            candidate = write()
            same = [a.evaluation for a in tried if a.candidate.sha256 == candidate.sha256]
            evaluation = same[0] if same else self.evaluator.evaluate(task, candidate, ("eager",), QUICK)
        except NoCandidate as none:
            candidate = none.candidate
            evaluation = self.evaluator.turned_away(task, candidate, none.reason)
        attempt = Attempt(candidate, evaluation, self._profile(task, evaluation), advice)
        self.recorder.attempt(task, len(tried), attempt, advice, confirms=False)
        return attempt

    def _confirm(self, task: Task, tried: Sequence[Attempt]) -> None:
        """Measure the winner afresh against all baselines, the next best where it fails the second time.

        The best of several noisy measurements is too good on average; this one is not chosen.
        """
        left = list(tried)
        while (winner := best_of(left)) is not None:
            evaluation = self.evaluator.evaluate(task, winner.candidate, self.baselines)
            attempt = Attempt(winner.candidate, evaluation, self._profile(task, evaluation))
            self.recorder.attempt(task, len(tried), attempt, None, confirms=True)
            if evaluation.verdict is Verdict.correct:
                return
            left = [other for other in left if other.candidate.sha256 != winner.candidate.sha256]

    def _profile(self, task: Task, evaluation: Evaluation) -> Profile | None:
        return roofline(self.evaluator.work(task), self.evaluator.target, evaluation)


def deadline(max_minutes: float | None) -> Callable[[], str | None]:
    """A budget that runs out `max_minutes` from now."""
    end = None if max_minutes is None else time.monotonic() + 60 * max_minutes

    def check() -> str | None:
        return f"{max_minutes:g} minutes are over" if end is not None and time.monotonic() > end else None

    return check
