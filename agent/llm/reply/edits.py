"""Changes of a file, as models write them instead of the whole file.

Search/replace blocks, in a fence or not:

    <<<<<<< SEARCH
        y[i] = 2 * x[i];
    =======
        y[i] = x[i] + x[i];
    >>>>>>> REPLACE

and unified diffs. The line numbers of a diff are ignored, since models cannot count lines: a hunk is placed
by its context, as a search/replace block is. Whitespace may differ if nothing in the file fits exactly.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernelwright.agent.llm.model import ReplyUnusable
from kernelwright.agent.llm.reply.fences import CodeBlock

_SEARCH = re.compile(r"\s*(?:<{5,}|-{5,})\s*(?:SEARCH|ORIGINAL)\b", re.IGNORECASE)
_MIDDLE = re.compile(r"\s*={5,}\s*$")
_REPLACE = re.compile(r"\s*(?:>{5,}|\+{5,})\s*(?:REPLACE|UPDATED)?\s*$", re.IGNORECASE)
_DIFF = ("diff", "patch", "udiff")
_HUNK = re.compile(r"^@@.*$", re.MULTILINE)
_HEADER = re.compile(r"diff |index [0-9a-f]|new file|\*\*\* |\+\+\+ |\\")
_OF_DIFF = (" ", "+", "-", "\\", "@", "diff ", "index ")
_MOST_FAULTS = 3  # that the model is told at once
_GIVE = "or give the whole file"


@dataclass(frozen=True)
class Edit:
    name: str  # for the model
    old: str
    new: str


def search_replace(text: str) -> tuple[list[Edit], str]:
    """Return the search/replace blocks of a text, and the text without them.

    Raises ReplyUnusable for a block that does not end.
    """
    edits: list[Edit] = []
    rest: list[str] = []
    part, old, new = rest, [""], [""]
    for line in text.split("\n"):
        name = f"SEARCH block {len(edits) + 1}"
        if part is rest and _SEARCH.match(line):
            part = old = []
        elif part is old and _MIDDLE.match(line):
            part = new = []
        elif part is new and _REPLACE.match(line):
            edits.append(Edit(name, "\n".join(old), "\n".join(new)))
            part = rest
        else:
            part.append(line)
    if part is not rest:
        missing = "=======" if part is old else ">>>>>>> REPLACE"
        raise ReplyUnusable(f"{name} is incomplete: it has no line {missing}")
    return edits, "\n".join(rest)


def is_diff(block: CodeBlock) -> bool:
    return block.language in _DIFF or _HUNK.search(block.text) is not None


def unfenced_diff(text: str) -> str:
    """Return the lines of a text that belong to a unified diff; "" if it has none."""
    first = _HUNK.search(text)
    if first is None:
        return ""
    return "\n".join(line for line in text[first.start() :].split("\n") if line.startswith(_OF_DIFF))


def hunks(diff: str) -> list[Edit]:
    """Return the hunks of a unified diff; one without hunk headers is a single hunk."""
    found: list[tuple[list[str], list[str]]] = [([], [])]
    lines = diff.split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        old, new = found[-1]
        names_old = line.startswith("--- ") and following.startswith("+++ ")
        if line.startswith("@@"):
            found.append(([], []))
        elif names_old or _HEADER.match(line):
            continue
        elif line.startswith("+"):
            new.append(line[1:])
        elif line.startswith("-"):
            old.append(line[1:])
        else:
            context = line.removeprefix(" ")
            old.append(context)
            new.append(context)
    changed = [(old, new) for old, new in found if old != new]
    return [
        Edit(f"hunk {number}", "\n".join(old), "\n".join(new))
        for number, (old, new) in enumerate(changed, start=1)
    ]


def edited(source: str, edits: Iterable[Edit]) -> str:
    """Return the source with the edits, one after the other.

    Raises ReplyUnusable if the place of one is not in the source, or not the only one.
    """
    faults = []
    for edit in edits:
        try:
            source = _applied(source, edit)
        except ReplyUnusable as error:
            faults.append(str(error))
    if faults:
        raise ReplyUnusable("; ".join(faults[:_MOST_FAULTS]))
    return source


def _applied(source: str, edit: Edit) -> str:
    old, new = _lines(edit.old), _lines(edit.new)
    if not old:
        raise ReplyUnusable(
            f"{edit.name} shows no line of the file: show the lines beside the new ones, {_GIVE}"
        )
    lines = source.split("\n")
    for key in (str.rstrip, _without_spacing):
        places = list(_places(lines, old, key))
        if len(places) > 1:
            raise _ambiguous(edit, [place + 1 for place in places])
        if places:
            (place,) = places
            moved = _indented(new, lines[place], old[0])
            return "\n".join([*lines[:place], *moved, *lines[place + len(old) :]])
    return _part_of_a_line(source, edit, "\n".join(old), "\n".join(new))


def _part_of_a_line(source: str, edit: Edit, old: str, new: str) -> str:
    """Replace text that begins or ends within a line."""
    at = source.find(old)
    if at < 0:
        raise ReplyUnusable(
            f"{edit.name} does not fit: the file has no lines as those that begin with "
            f"'{old.split(chr(10))[0].strip()[:80]}'; copy them as they are in the file, {_GIVE}"
        )
    again = source.find(old, at + 1)
    if again >= 0:
        raise _ambiguous(edit, [source.count("\n", 0, place) + 1 for place in (at, again)])
    before = source[:at].rpartition("\n")[2]
    broken = "\n" if before.strip() and "\n" in new else ""  # what was taken for a line is to begin one
    return source[:at] + broken + new + source[at + len(old) :]


def _ambiguous(edit: Edit, numbers: Sequence[int]) -> ReplyUnusable:
    named = ", ".join(map(str, dict.fromkeys(numbers[:5])))
    return ReplyUnusable(
        f"{edit.name} fits in more than one place (line {named}): show more lines around it, {_GIVE}"
    )


def _lines(text: str) -> list[str]:
    """Return the lines of a text, without blank ones at its ends."""
    lines = [line.rstrip() for line in text.split("\n")]
    filled = [i for i, line in enumerate(lines) if line]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _places(lines: Sequence[str], wanted: Sequence[str], key: Callable[[str], str]) -> Iterator[int]:
    """Yield where the wanted lines stand among others."""
    keys, wanted = [key(line) for line in lines], [key(line) for line in wanted]
    return (at for at in range(len(keys)) if keys[at : at + len(wanted)] == wanted)


def _without_spacing(line: str) -> str:
    return "".join(line.split())


def _indented(lines: Sequence[str], there: str, said: str) -> list[str]:
    """Move lines as far to the right as the line in the file is of the line that was meant."""
    more = (len(there) - len(there.lstrip())) - (len(said) - len(said.lstrip()))
    if more >= 0:
        return [" " * more + line if line else line for line in lines]
    return [line[min(-more, len(line) - len(line.lstrip())) :] for line in lines]
