"""Code that torch.compile generates, to recognize modes that generate the same."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager

_BUFFER = re.compile(r"\bbuf\d+\b")  # some numbers go to what was tried and not taken
_CHECK = "assert_size_stride("  # of a tensor's layout, microseconds; not every mode has them


@contextmanager
def generated() -> Iterator[list[str]]:
    """Collect, in the block, the text of all code that Inductor generates or finds in its cache.

    Uses the hook that torch's own tests use. The list is empty if Inductor does not call it.
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
    """Return a digest that ignores comments, checks and numbers of buffers; None for no code."""
    lines = [line for text in texts for line in text.splitlines()]
    kept = [line for line in lines if not line.lstrip().startswith(("# ", _CHECK))]  # C++ has no "# "
    numbers: dict[str, str] = {}  # in the order in which buffers come up
    code = _BUFFER.sub(lambda found: numbers.setdefault(found[0], f"buf{len(numbers)}"), "\n".join(kept))
    return hashlib.sha256(code.encode()).hexdigest() if texts else None
