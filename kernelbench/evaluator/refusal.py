"""How an evaluation, or a part of it, ends early."""

from kernelbench.errors import InfrastructureError
from kernelbench.records import Verdict


class Refused(Exception):  # noqa: N818 - the outcome, not an error
    """The candidate's evaluation ends here, with this verdict."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


class BaselineFailed(InfrastructureError):  # noqa: N818 - what happened
    """A baseline failed while it was timed; it has been dropped."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"the baseline {name} failed while it was timed: {why}", "evaluate the candidate once more"
        )
        self.name = name


class CallFailed(Refused):
    """A worker failed in a block: the candidate, whose verdict it is, or a baseline."""
