"""Refusal: the early end of an evaluation, or of a part of it, and what may be said of it.

Reasons hold what candidates wrote: compilers' messages, exceptions, the last line that was printed. They go
to terminals, databases and prompts, so they are cut here, and nothing in them commands a terminal.
"""

import re

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.records import Verdict

# In what torch raises.
NO_MEMORY = re.compile(r"can't allocate memory|[Oo]ut of memory|bad_alloc|bad allocation")
_LONGEST = 8000  # characters of a reason
# Control characters but tab and newline, marks that change the direction of what follows, lone surrogates.
_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str, longest: int = _LONGEST) -> str:
    """Return the text without what commands a terminal, cut to `longest` characters."""
    kept = text[: longest + 1].replace("\r\n", "\n")
    kept = _COMMANDS.sub("?", kept)
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


def message_of(error: BaseException) -> str:
    """Return the text of an exception; for a full GPU, without what torch says of its allocator."""
    return str(error).partition(" Including non-PyTorch memory")[0]


class Refused(Exception):  # noqa: N818 - the outcome, not an error
    """The candidate's evaluation ends here, with this verdict."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        self.verdict = verdict
        self.reason = printable(reason)
        super().__init__(self.reason)


class NoDeviceMemory(InfrastructureError):  # noqa: N818 - what happened
    """A GPU has too little memory left, for an oracle or for one of its workers."""


class BaselineFailed(InfrastructureError):  # noqa: N818 - what happened
    """A baseline failed while it was timed; it has been dropped."""

    def __init__(self, name: str, why: str, memory: bool = False) -> None:
        """`memory`: it says that there was none left."""
        super().__init__(
            f"the baseline {name} failed while it was timed: {printable(why)}",
            "reduce the sizes with --set" if memory else "retry the evaluation",
        )
        self.name = name


class CallFailed(Refused):
    """A worker failed in a block: the candidate, whose verdict it is, or a baseline.

    `memory`: it says that there was none left.
    """

    def __init__(self, verdict: Verdict, reason: str, memory: bool = False) -> None:
        super().__init__(verdict, reason)
        self.memory = memory
