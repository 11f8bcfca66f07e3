"""Selectors of entries in a suite: `2/40`, `level2/40_Matmul`, `1/1-20`, `level1/*norm*`."""

import difflib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from kernelwright.kernelbench.errors import UnknownTaskError, UsageError
from kernelwright.kernelbench.sources.entry import Entry

LIST_ALL = "`kernelwright tasks` lists the tasks"


def select(entries: Sequence[Entry], selector: str, name: str) -> list[Entry]:
    """Return the entries in suite order, at least one; else `UnknownTaskError` about `name`."""
    level, _, task = selector.removesuffix(".py").partition("/")
    in_level = [entry for entry in entries if not level or _in_level(entry, level)]
    chosen = _select_in_level(in_level, task, name) if task else in_level
    if not chosen:
        raise unknown(name, entries, _what_there_is(in_level, entries))
    return chosen


def unknown(name: str, entries: Sequence[Entry], hint: str = LIST_ALL) -> UnknownTaskError:
    """Return the error for an unknown task; the fix suggests near names."""
    spellings: dict[str, str] = {}  # what may have been meant -> the name to give
    for entry in entries:
        for spelling in (entry.short_name, entry.name, entry.long_id):
            spellings.setdefault(spelling, entry.long_id)
    tail = name.rpartition("/")[2].rpartition(":")[2]
    if re.fullmatch(r"\d+(-\d+)?", tail):  # the number next to a wrong one means nothing
        return UnknownTaskError(f"unknown task {name}", hint)
    near = [
        *difflib.get_close_matches(tail, spellings, n=3, cutoff=0.7),
        *difflib.get_close_matches(name, spellings, n=3, cutoff=0.8),
    ]
    suggested = list(dict.fromkeys(spellings[spelling] for spelling in near))[:3]
    fix = f"did you mean {' or '.join(suggested)}? {hint}" if suggested else hint
    return UnknownTaskError(f"unknown task {name}", fix)


def _in_level(entry: Entry, level: str) -> bool:
    return any(
        fnmatchcase(spelling, level) for spelling in (str(entry.level), f"level{entry.level}", entry.folder)
    )


def _select_in_level(entries: Sequence[Entry], task: str, name: str) -> list[Entry]:
    if any(character in task for character in "*?["):
        return [entry for entry in entries if any(fnmatchcase(spelling, task) for spelling in _names(entry))]
    limits = re.fullmatch(r"(\d+)-(\d+)", task)
    if limits:
        return _range(entries, int(limits[1]), int(limits[2]), name)
    if task.isdecimal():
        by_number = [entry for entry in entries if entry.number == int(task)]
        if by_number:
            return by_number
    exact = [entry for entry in entries if task in _names(entry)]
    if exact:
        return exact
    # Upstream's file names are long and numbered; ours are short, where a prefix is a slip of the pen.
    begins = [
        entry
        for entry in entries
        if entry.number is not None
        and not task.isdecimal()
        and any(spelling.startswith(task) for spelling in _names(entry))
    ]
    if len(begins) > 1:
        listed = ", ".join(entry.long_id for entry in begins[:4])
        raise UnknownTaskError(
            f"{name} is the beginning of {len(begins)} tasks",
            f"give more of the name, or {task}* for all: {listed}{', …' if len(begins) > 4 else ''}",
        )
    return begins


def _names(entry: Entry) -> tuple[str, str]:
    return entry.name, entry.short_name


def _range(entries: Sequence[Entry], first: int, last: int, name: str) -> list[Entry]:
    if first > last:
        raise UsageError(f"{name} is an empty range", f"use {last}-{first}")
    chosen = [entry for entry in entries if entry.number is not None and first <= entry.number <= last]
    # A range that reaches past the level would quietly run fewer tasks than were asked for.
    complete = {first, last} <= {entry.number for entry in chosen}
    return chosen if complete else []


def _what_there_is(in_level: Sequence[Entry], entries: Sequence[Entry]) -> str:
    numbers = [entry.number for entry in in_level if entry.number is not None]
    if numbers and len({entry.level for entry in in_level}) == 1:
        return f"level {in_level[0].level} has the problems {min(numbers)}-{max(numbers)}"
    if not in_level and entries:
        names = dict.fromkeys(str(entry.level or entry.folder) for entry in entries)
        return f"its levels are {', '.join(names)}"
    return LIST_ALL
