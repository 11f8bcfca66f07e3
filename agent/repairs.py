"""Repairs: what did not build or run goes back to the model that wrote it, in the same conversation."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.protocols import Attempt, RepairingCoder
from kernelwright.agent.search import rounds_of
from kernelwright.kernelbench.records import Candidate, Task, Verdict

_OF_ITS_OWN = frozenset({Verdict.build_error, Verdict.runtime_error})  # whose message says what to fix


@dataclass(frozen=True)
class Repairs:
    """At most so many in a row; they take no round and no judge."""

    coder: RepairingCoder
    most: int

    def subject(self, history: Sequence[Attempt]) -> Attempt | None:
        """Return the attempt to be repaired next, the last one of the last round; None if there is none.

        A file that failed before is not repaired again, nor is a reply without a file.
        """
        rounds = rounds_of(history).rounds
        if not rounds or len(rounds[-1].attempts) > self.most:
            return None
        last = rounds[-1].attempts[-1]
        candidate = last.candidate
        known = any(a.candidate.sha256 == candidate.sha256 for a in history if a is not last)
        answered = candidate.usable and candidate.request and not known
        return last if answered and last.evaluation.verdict in _OF_ITS_OWN else None

    def repaired(self, task: Task, history: Sequence[Attempt], failed: Attempt) -> Candidate:
        """Return the repaired candidate. Raises what `Coder.propose` does."""
        began = rounds_of(history).rounds[-1].began
        return self.coder.repair(task, history[:began], failed)
