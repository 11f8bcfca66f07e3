"""Fenced code blocks of a Markdown text, also as models write them.

Beyond CommonMark: a fence may be indented as deep as a list wants it, begin behind text (`Code: ```python`),
or end behind the last line of code; one in a triple-quoted string of the code is part of the code; and one
with a language closes the block before it, which was forgotten.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})([^`]*)$")
_BEHIND_TEXT = re.compile(r".*?[^`](`{3,})([\w+#.-]*)\s*$")
_LANGUAGE = re.compile(r"\W*([\w+#.-]*)")
_TOKEN = re.compile(  # strings and comments of Python; group 2: a string that is not closed
    r"""("{3}|'{3})(?:\\.|.)*?(?:\1|(\Z))|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""", re.DOTALL
)
_TRIED = 20  # fences that may be in a string of the code
_MOST_INFO = 3  # words behind a fence; more are a sentence


@dataclass(frozen=True)
class CodeBlock:
    language: str  # as the fence has it, in lower case
    text: str


@dataclass(frozen=True)
class _Fence:
    """A line with a fence. `before`: of the line; `indent`: of a fence without text before it."""

    mark: str
    before: str
    language: str
    indent: int


def blocks_of(text: str) -> Iterator[CodeBlock]:
    """Yield the fenced blocks. One that is never closed goes to the end."""
    lines = text.split("\n")
    fences = [(at, fence) for at, line in enumerate(lines) if (fence := _fence(line)) is not None]
    place = 0
    while place < len(fences):
        at, opener = fences[place]
        place += 1
        if opener.mark in opener.before:
            continue  # ```code``` in a line
        ends = list(islice((i for i in range(place, len(fences)) if _ends(fences[i][1], opener)), _TRIED))
        found = next((i for i in ends if not _in_string(_text(lines, at, opener, *fences[i]))), None)
        if found is None:
            if not ends:
                yield CodeBlock(opener.language, _text(lines, at, opener, len(lines), None))
                return
            found = ends[0]
        end, closer = fences[found]
        yield CodeBlock(opener.language, _text(lines, at, opener, end, closer))
        place = found if closer.language else found + 1


def _fence(line: str) -> _Fence | None:
    alone = _FENCE.match(line)
    if alone is not None:
        indent, mark, info = alone.groups()
        found = _LANGUAGE.match(info) if len(info.split()) <= _MOST_INFO else None
        return _Fence(mark, "", found.group(1).lower() if found else "", len(indent))
    behind = _BEHIND_TEXT.match(line) if "```" in line else None
    if behind is None:
        return None
    return _Fence(behind.group(1), line[: behind.start(1)], behind.group(2).lower(), 0)


def _ends(fence: _Fence, opener: _Fence) -> bool:
    """Return True if a fence could end the block that `opener` begins."""
    behind_code = bool(fence.before)
    glued = behind_code and not fence.language and fence.mark not in fence.before
    return fence.mark.startswith(opener.mark) and (glued or not behind_code)


def _text(lines: Sequence[str], at: int, opener: _Fence, end: int, closer: _Fence | None) -> str:
    """Return the code between two fences, without the indentation of the first, or of all of it."""
    code = [line[min(opener.indent, len(line) - len(line.lstrip())) :] for line in lines[at + 1 : end]]
    if closer is not None and closer.before:
        code.append(closer.before)
    text = "\n".join(code)
    return textwrap.dedent(text) if text.lstrip("\n").startswith((" ", "\t")) else text


def _in_string(code: str) -> bool:
    """Return True if the code ends in a triple-quoted string."""
    return any(token.group(2) is not None for token in _TOKEN.finditer(code))
