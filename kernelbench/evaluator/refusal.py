"""How an evaluation ends before its last stage."""

from kernelbench.records import Verdict


class Refused(Exception):  # noqa: N818 - the outcome, not an error
    """The candidate's evaluation ends here, with this verdict."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


class CallFailed(Refused):
    """A worker failed in a block: the candidate, whose verdict it is, or a baseline."""
