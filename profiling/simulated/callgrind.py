"""Counts of callgrind, in the file format of its manual.

https://valgrind.org/docs/manual/cl-format.html
"""

import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass

from kernelwright.kernelbench.evaluator.processes.answers import Count

EVENTS = ("Ir", "Dr", "Dw", "D1mr", "D1mw", "DLmr", "DLmw")
_NAMED = re.compile(r"c?fn=\((?P<number>\d+)\)(?: (?P<name>.*))?")
_RECURSION = re.compile(r"'\d+$")


@dataclass(frozen=True)
class Costs:
    """Costs of one kernel and all it calls, over `calls` calls. Misses are of data, reads and writes."""

    kernel: str
    calls: Count
    instructions: Count
    reads: Count
    writes: Count
    l1_misses: Count
    last_misses: Count

    def __add__(self, other: "Costs") -> "Costs":
        _, *mine = astuple(self)
        _, *theirs = astuple(other)
        return Costs(self.kernel, *(a + b for a, b in zip(mine, theirs, strict=True)))


def costs(text: str, caller: str) -> list[Costs]:
    """Return the costs of the functions `caller` calls, each with all its callees, in order of first call.

    Raises ValueError if `text` is not such a file.
    """
    events: list[str] = []
    names: dict[str, str] = {}
    function = callee = ""
    found: dict[str, Costs] = {}
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("events:"):
            events = line.split()[1:]
        elif (named := _NAMED.match(line)) is not None:
            if named["name"] is not None:
                names[named["number"]] = _RECURSION.sub("", named["name"])
            name = names[named["number"]]
            function, callee = (function, name) if line.startswith("c") else (name, callee)
        elif line.startswith("calls=") and function == caller:
            one = _costs(callee, int(line[6:].split()[0]), dict(_counted(events, next(lines, ""))))
            found[callee] = found[callee] + one if callee in found else one
    if not set(EVENTS) <= set(events):
        raise ValueError("no counts of callgrind with its simulation of caches")
    return list(found.values())


def _counted(events: list[str], line: str) -> Iterator[tuple[str, int]]:
    """Yield (event, count) from a line with a position and counts; zeros at the end are left out."""
    counts = [int(word) for word in line.split()[1:]]
    yield from zip(events, counts + [0] * (len(events) - len(counts)), strict=True)


def _costs(kernel: str, calls: int, by: dict[str, int]) -> Costs:
    instructions, reads, writes, *missed = (by.get(event, 0) for event in EVENTS)
    return Costs(kernel, calls, instructions, reads, writes, missed[0] + missed[1], missed[2] + missed[3])
