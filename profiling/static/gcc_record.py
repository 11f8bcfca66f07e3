"""The record that g++ -fsave-optimization-record writes, as far as it is about loops and vectors.

https://gcc.gnu.org/onlinedocs/gcc/Developer-Options.html
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.kernelbench.evaluator.processes.answers import Count
from kernelwright.kernelbench.jit.library import SOURCE_NAME
from kernelwright.profiling.static.x86 import kernel_of

_VECTORIZED = re.compile(r"loop vectorized using (\d+) byte vectors")
_MISSED, _WHY, _STATEMENT = "couldn't vectorize loop", "not vectorized: ", "==> examining statement: "
# What is said of loops that were not missed: they are around others, or written in vectors by hand.
_CONSIDERED = "Considering outer-loop vectorization"
_NOT_MISSED = re.compile(r"loop nest|nested loops|inner[- ]loop|__builtin_ia32_")
_SUMMARIES = ("bad loop form", "bad data references", "bad data access")  # of a reason that is given too


@dataclass(frozen=True)
class SourceLoop:
    """A source loop as g++ compiled it. `vector_bytes`: 0 if it is not vectorized, with the `reason`."""

    kernel: str
    line: Count
    column: Count
    code: str  # the line
    vector_bytes: Count
    reason: str = ""


def parsed(text: str, source: str) -> Iterator[SourceLoop]:
    """Yield the loops in GCC's optimization record (format 1) of `source`, by kernel and line.

    A loop with several versions counts once, as the best of them. Left out are loops around others that were
    not vectorized for that, and those that were not because of intrinsics in them.
    """
    _, passes, records = json.loads(text)
    vectorizer = {number for number, name in _names(passes) if name == "vect"}
    lines = source.splitlines()
    best: dict[tuple[str, int, int], SourceLoop] = {}
    touched: dict[str, set[int]] = {}  # by kernel, the lines of its loops and of calls inlined for them
    said: list[_Said] = []  # since the last loop
    for depth, record in _flat(records, 0):
        if record.get("pass") not in vectorizer or record["kind"] == "scope":
            continue
        words = _words(record["message"])
        vectorized = _VECTORIZED.match(words)
        if vectorized is None and not words.startswith(_MISSED):
            said.append(_Said(words, depth, record["kind"] == "failure"))
            continue
        kernel, places = kernel_of(str(record.get("function"))), list(_places(record))
        reason = "" if vectorized is not None else _reason(said)
        said = []
        touched.setdefault(kernel, set()).update(line for line, _ in places)
        if not places or (vectorized is None and not reason):
            continue
        width = int(vectorized[1]) if vectorized is not None else 0
        line, column = places[0]
        code = lines[line - 1].strip() if line <= len(lines) else ""
        key = (kernel, line, column)
        if key not in best or width > best[key].vector_bytes:
            best[key] = SourceLoop(kernel, line, column, code, width, reason)
    for loop in sorted(best.values(), key=lambda loop: (loop.line, loop.column)):
        within = range(loop.line + 1, _last_line(lines, loop.line) + 1)
        if loop.vector_bytes or touched[loop.kernel].isdisjoint(within):
            yield loop


def _last_line(lines: Sequence[str], first: int) -> int:
    """Return the line that closes the braces opened in line `first`; `first` if none stay open."""
    depth = 0
    for number in range(first, len(lines) + 1):
        depth += lines[number - 1].count("{") - lines[number - 1].count("}")
        if depth <= 0:
            return number
    return first


@dataclass(frozen=True)
class _Said:
    words: str
    depth: int  # 0 and 1: of the whole loop; below: of one statement in it
    failure: bool


def _reason(said: Sequence[_Said]) -> str:
    """Return the reason a loop was missed; empty if it is around others or made of intrinsics.

    GCC tries one width of vectors after the other. The obstacle to the first says more than the failure of
    the last, which it names in the end.
    """
    for each in said:
        if each.words.startswith(_CONSIDERED) or (each.failure and _NOT_MISSED.search(each.words)):
            return ""
    failures = [number for number, each in enumerate(said) if each.failure and each.words]
    verdict = next((place for place, n in enumerate(failures) if said[n].depth < 2), 0)
    if verdict == 0:
        whole = [said[n].words.removeprefix(_WHY).rstrip(".;") for n in failures if said[n].depth < 2]
        telling = [words for words in whole if words not in _SUMMARIES] or whole
        return "; ".join(dict.fromkeys(telling)) or "no reason given"
    cause = failures[verdict - 1]
    statements = [each.words for each in said[:cause] if each.words.startswith(_STATEMENT)]
    statement = f" ({statements[-1].removeprefix(_STATEMENT).rstrip(';')})" if statements else ""
    return said[cause].words.removeprefix(_WHY).rstrip(".") + statement


def _names(passes: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for each in passes:
        yield each["id"], each["name"]
        yield from _names(each.get("children", ()))


def _flat(records: Iterable[dict[str, Any]], depth: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records in order, children before their parent."""
    for record in records:
        yield from _flat(record.get("children", ()), depth + 1)
        yield depth, record


def _words(message: Sequence[str | dict[str, Any]]) -> str:
    parts = (
        part if isinstance(part, str) else str(part.get("stmt") or part.get("expr", "")) for part in message
    )
    return "".join(parts).strip()


def _places(record: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield lines and columns in the source: of a loop, then of the calls it was inlined for, if any."""
    sites = [record.get("location"), *(site.get("site") for site in record.get("inlining_chain", ()))]
    for site in sites:
        if site is not None and site["file"] == SOURCE_NAME:
            yield int(site["line"]), int(site["column"])
