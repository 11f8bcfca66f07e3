"""What a coder and a judge are to the loop that drives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelbench.records import Advice, Candidate, Evaluation, Task
from profiling.records import Profile


@dataclass(frozen=True)
class Attempt:
    """A candidate with what was found out about it. `profile` is None where none was taken.

    `advice` is what the candidate was asked for with.
    """

    candidate: Candidate
    evaluation: Evaluation
    profile: Profile | None
    advice: Advice | None = None


class NoCandidate(Exception):  # noqa: N818 - what happened
    """What a coder came up with is no candidate: the `reason`, and all the same as one, to be recorded."""

    def __init__(self, candidate: Candidate, reason: str) -> None:
        super().__init__(reason)
        self.candidate, self.reason = candidate, reason


class Coder(Protocol):
    """Writes candidates."""

    def propose(self, task: Task, history: Sequence[Attempt], advice: Advice | None) -> Candidate:
        """The next candidate; the first one has an empty history and no advice. Raises NoCandidate."""
        ...


class Judge(Protocol):
    """Says what to change next."""

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        """Advice on the last attempt, `history[-1]`; None when nothing sensible is left to try."""
        ...
