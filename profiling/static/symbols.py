"""Location of each of a library's functions in its file, by objdump."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.evaluator.processes.answers import Count
from kernelwright.profiling.static.objdump import output_of

_TEXT = re.compile(r"^ *\d+ \.text +[\da-f]+ +(?P<address>[\da-f]+) +[\da-f]+ +(?P<offset>[\da-f]+) ", re.M)
_FUNCTION = re.compile(r"^(?P<address>[\da-f]{8,16}) .{6}F \.text\t(?P<size>[\da-f]+) +(?P<name>\S+)$", re.M)


@dataclass(frozen=True)
class Symbol:
    name: str
    begin: Count  # bytes from the beginning of the file
    size: Count


def symbols(library: Path) -> list[Symbol]:
    """Return a library's functions. Raises Unavailable if objdump is missing or cannot read it."""
    return list(parsed(output_of(library, "--section-headers", "--syms")))


def parsed(text: str) -> Iterator[Symbol]:
    """Yield the functions in objdump's output; none if it could not read the library."""
    section = _TEXT.search(text)
    if section is not None:
        ahead = int(section["offset"], 16) - int(section["address"], 16)
        for found in _FUNCTION.finditer(text):
            yield Symbol(found["name"], int(found["address"], 16) + ahead, int(found["size"], 16))
