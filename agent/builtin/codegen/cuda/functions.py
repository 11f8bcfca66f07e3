"""The functions of `functions.cuh`, which kernels call."""

import re
from functools import cache
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
_DEFINED = re.compile(r"^__device__ (?:\w+ )+?(\w+)\(", re.M)


@cache
def functions() -> dict[str, str]:
    """Their definitions by name; of one that is overloaded, all."""
    found: dict[str, str] = {}
    for block in re.split(r"\n\n(?!\s)", (TEMPLATES / "functions.cuh").read_text()):
        if (match := _DEFINED.search(block)) is not None:
            name = match[1]
            found[name] = f"{found[name]}\n\n{block.strip()}" if name in found else block.strip()
    return found
