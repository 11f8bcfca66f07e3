"""Lines of code in which numbers stand for sizes.

>>> line = tokens("y = x.expand([17, 64])")
>>> line
('y = x.expand([', 17, ', ', 64, '])')
>>> joined(line)
'y = x.expand([17, 64])'
"""

import re
from collections.abc import Iterable

Tokens = tuple[str | int | float, ...]
_NUMBER = re.compile(r"((?<![\w.])\d+(?:\.\d*)?(?:e[+-]?\d+)?(?![\w.]))")


def tokens(line: str) -> Tokens:
    """Return text and numbers in turn, so that forms of a line can be unified number by number."""
    found: list[str | int | float] = []
    for place, text in enumerate(_NUMBER.split(line)):
        found.append(text if place % 2 == 0 else int(text) if text.isdigit() else float(text))
    return tuple(found)


def joined(line: Iterable[str | int | float]) -> str:
    """Return the line of tokens; free sizes are written as their names."""
    return "".join(map(str, line))


def words(lines: Iterable[str]) -> set[str]:
    """Return the names in lines of code, but for those of attributes."""
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", "\n".join(lines)))
