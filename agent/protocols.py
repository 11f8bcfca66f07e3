"""Protocols of the loop: evaluator, coder, judge and recorder."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelwright.kernelbench.evaluator import Evaluator
from kernelwright.kernelbench.records import Advice, Candidate, Evaluation, Task
from kernelwright.profiling.records import Profile
from kernelwright.results.store import records

PARTS = "parts"  # author of what is put together from the kernels of a task's parts


@dataclass(frozen=True)
class Attempt:
    """A candidate with its evaluation. `profile` is None if none was taken.

    `advice` is the advice with which the candidate was requested.
    """

    candidate: Candidate
    evaluation: Evaluation
    profile: Profile | None
    advice: Advice | None = None


def searched(recorded: Iterable[records.RecordedAttempt]) -> list[Attempt]:
    """Return a task's attempts as a search sees them, without those that only confirm one."""
    found = (attempt for attempt in recorded if not attempt.confirms)
    return [Attempt(a.candidate, a.evaluation, a.profile, a.advice) for a in found]


class NoCandidate(Exception):  # noqa: N818 - what happened
    """The coder's output is invalid, for this `reason`; it is recorded as a candidate all the same."""

    def __init__(self, candidate: Candidate, reason: str) -> None:
        super().__init__(reason)
        self.candidate, self.reason = candidate, reason


class NoSeed(Exception):  # noqa: N818 - what happened
    """There is no kernel for this task to begin with; says why."""


class ProfilingEvaluator(Evaluator, Protocol):
    """Evaluator that also profiles. Thread-safe; calls wait for their turn."""

    def profile(
        self,
        task: Task,
        candidate: Candidate,
        evaluation: Evaluation,
        known: Profile | None = None,
        *,
        closely: bool = False,
    ) -> Profile | None:
        """Return what can be told quickly of a candidate that was evaluated; None if it was not timed.

        `closely`: also what takes longer. `known`: an earlier profile of it, to be extended.
        """
        ...


class Coder(Protocol):
    """Writes candidates."""

    def propose(
        self,
        task: Task,
        history: Sequence[Attempt],
        advice: Advice | None,
        sample: int = 0,
        afresh: bool = False,
    ) -> Candidate:
        """Return the next candidate; the first has an empty history and no advice. Raises NoCandidate.

        `sample` distinguishes requests that are otherwise equal, and whose candidates should differ.
        `afresh`: it is to be made from none of the history's.
        """
        ...

    def fallback(self, task: Task, history: Sequence[Attempt], best: Attempt) -> Candidate | None:
        """Return a candidate to submit instead of the confirmed `best`; None if that is good enough."""
        ...


class RepairingCoder(Protocol):
    """Coder that can be told why its candidate failed."""

    def repair(self, task: Task, history: Sequence[Attempt], failed: Attempt) -> Candidate:
        """Return a candidate instead of one that failed, which was made after this history.

        Raises NoCandidate.
        """
        ...


class SeedSource(Protocol):
    """Gives the candidate that a search begins with."""

    def __call__(self, task: Task) -> Candidate:
        """Return the seed of a task. Raises NoSeed."""
        ...


class Recorder(Protocol):
    """Keeps every attempt the moment it is finished."""

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None: ...

    def profile(self, task: Task, number: int, attempt: Attempt) -> None:
        """Keep the profile of an attempt in the place of the one that it extends."""
        ...


class Judge(Protocol):
    """Says what to change next."""

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        """Return advice for the next candidate; None when nothing sensible is left to try."""
        ...


class BranchingJudge(Judge, Protocol):
    """Judge with several pieces of advice on one attempt."""

    def advise_on(
        self, task: Task, history: Sequence[Attempt], attempt: Attempt, besides: Sequence[Advice]
    ) -> Advice:
        """Return advice on an attempt of the history, other than what has been advised `besides`."""
        ...
