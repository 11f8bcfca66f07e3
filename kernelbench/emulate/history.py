"""Launches of a process without a GPU, and the errors of kernels, even those caught by the caller.

Written by whatever runs kernels, and read by the worker for the evaluator. A candidate in the same process
can write here, too: this keeps an honest mistake from passing for a correct kernel, and is no protection.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from kernelwright.kernelbench.emulate.findings import KernelFault, Unsupported
from kernelwright.kernelbench.jit.errors import BuildError

Kind = Literal["build", "fault", "unsupported", "other"]
_MOST_TROUBLES, _LONGEST = 8, 2000

launched: Counter[str] = Counter()  # launches that ended well, by the name that the kernel is defined by
troubles: list[tuple[Kind, str]] = []


def has_run(kernel: str) -> None:
    launched[kernel] += 1


@contextmanager
def watched() -> Iterator[None]:
    """Record errors raised in the block."""
    try:
        yield
    except Exception as error:
        kinds: dict[type, Kind] = {BuildError: "build", KernelFault: "fault", Unsupported: "unsupported"}
        kind: Kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), "other")
        trouble: tuple[Kind, str] = (kind, f"{type(error).__name__}: {error}"[:_LONGEST])
        if trouble not in troubles and len(troubles) < _MOST_TROUBLES:
            troubles.append(trouble)
        raise
