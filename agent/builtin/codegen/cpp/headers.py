"""Picks the helper functions a kernel calls out of `math.h`, with what those call in turn."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kernelwright.agent.builtin.codegen.backend import Kernel, linked
from kernelwright.agent.builtin.codegen.cpp.types import SUFFIX
from kernelwright.kernelbench.jit.standard import MATH_HEADER

_AMX = Path(__file__).parent / "templates" / "amx.h"
_DEFINED = re.compile(r"static inline \w+ (\w+)\(")
_TYPES = {suffix: ctype for ctype, suffix in SUFFIX.items() if ctype != "float"}


@cache
def _blocks() -> dict[str, str]:
    text = "\n\n".join(path.read_text() for path in (MATH_HEADER, _AMX))
    found = {}
    for block in re.split(r"\n\n(?!\s)", text):
        match = _DEFINED.search(block)
        if match:
            found[match[1]] = block.strip()
    return found


def _block(name: str, blocks: dict[str, str]) -> str | None:
    """Return the definition of a helper; for another type than float, derived from float's."""
    if name in blocks:
        return blocks[name]
    stem, _, suffix = name.rpartition("_")
    base = blocks.get(f"{stem}_f32")
    if suffix not in _TYPES or base is None:
        return None
    text = re.sub(r"(\d)f\b", r"\1", base).replace("_f32", f"_{suffix}")
    return re.sub(r"\bfloat\b", _TYPES[suffix], text)


def helpers(kernels: Iterable[Kernel]) -> list[str]:
    """Definitions of the helpers that kernels call and of all they use, callees first."""
    blocks = _blocks()
    return linked(kernels, lambda name: _block(name, blocks))


def standard_headers(body: str) -> list[str]:
    """Return the standard headers that a text needs."""
    found = ["cmath", "cstdint"]
    if "std::min" in body or "std::max" in body:
        found.insert(0, "algorithm")
    if "std::memcpy" in body:
        found.append("cstring")
    if "numeric_limits" in body:
        found.append("limits")
    if "std::vector" in body:
        found.append("vector")
    if "_mm" in body:
        found.append("immintrin.h")
    if "syscall(" in body:
        found += ["sys/syscall.h", "unistd.h"]
    return found
