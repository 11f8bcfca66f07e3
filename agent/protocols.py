"""Protocols of the loop: evaluator, coder, judge, ranker and recorder."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelwright.kernelbench.evaluator import Evaluator
from kernelwright.kernelbench.records import Advice, Candidate, Evaluation, Task
from kernelwright.profiling.records import Profile
from kernelwright.results.store import records


@dataclass(frozen=True)
class Attempt:
    """A candidate with what was found out about it. `profile` is None where none was taken.

    `advice` is what the candidate was asked for with.
    """

    candidate: Candidate
    evaluation: Evaluation
    profile: Profile | None
    advice: Advice | None = None


def searched(recorded: Iterable[records.Attempt]) -> list[Attempt]:
    """A task's attempts as a search sees them: without those that only confirm one."""
    found = (attempt for attempt in recorded if not attempt.confirms)
    return [Attempt(a.candidate, a.evaluation, a.profile, a.advice) for a in found]


class NoCandidate(Exception):  # noqa: N818 - what happened
    """What a coder came up with is no candidate: the `reason`, and all the same as one, to be recorded."""

    def __init__(self, candidate: Candidate, reason: str) -> None:
        super().__init__(reason)
        self.candidate, self.reason = candidate, reason


class ProfilingEvaluator(Evaluator, Protocol):
    """Where candidates are evaluated and profiled. Many threads may ask, and wait for their turn."""

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile | None:
        """Return what can be told quickly of a candidate that was evaluated; None if it was not timed."""
        ...


class Coder(Protocol):
    """Writes candidates."""

    def propose(
        self, task: Task, history: Sequence[Attempt], advice: Advice | None, sample: int = 0
    ) -> Candidate:
        """The next candidate; the first one has an empty history and no advice. Raises NoCandidate.

        `sample` tells requests apart that are alike otherwise, and whose candidates should differ.
        """
        ...

    def fallback(self, task: Task, history: Sequence[Attempt], best: Attempt) -> Candidate | None:
        """A candidate to submit instead of the `best`, confirmed one; None where that is good enough."""
        ...


class Ranker(Protocol):
    """Estimates speedups from all that was measured of a task, rather than each from its own measurement."""

    def speedups(self, task: Task, attempts: Sequence[Attempt]) -> Mapping[str, float]:
        """Expected speedups over eager by the candidates' sha256; without those it can say nothing about."""
        ...


class Recorder(Protocol):
    """Keeps every attempt the moment it is finished."""

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None: ...


class Judge(Protocol):
    """Says what to change next."""

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        """What to do next; None when nothing sensible is left to try."""
        ...


class BranchingJudge(Judge, Protocol):
    """One that has several pieces of advice on one attempt."""

    def advise_on(
        self, task: Task, history: Sequence[Attempt], attempt: Attempt, besides: Sequence[Advice]
    ) -> Advice:
        """Advice on an attempt of the history, other than what has been advised `besides`."""
        ...
