"""What code torch.compile has generated, to tell whether two of its modes come to the same."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

_CHECK = "assert_size_stride("  # of a tensor's layout, microseconds; not every mode has them


@contextmanager
def generated() -> Iterator[list[str]]:
    """The texts of all that Inductor generates, or finds in its cache, within the block.

    By the hook that torch's own tests have. Empty where it does not say.
    """
    from torch._inductor.graph import GraphLowering

    texts: list[str] = []
    before = getattr(GraphLowering, "save_output_code", None)
    GraphLowering.save_output_code = texts.append
    try:
        yield texts
    finally:
        GraphLowering.save_output_code = before


def digest(texts: list[str]) -> str | None:
    """The same for code that does the same, without its comments; None where there is none."""
    lines = [line for text in texts for line in text.splitlines()]
    kept = [line for line in lines if not line.lstrip().startswith(("# ", _CHECK))]  # C++ has no "# "
    return hashlib.sha256("\n".join(kept).encode()).hexdigest() if texts else None
