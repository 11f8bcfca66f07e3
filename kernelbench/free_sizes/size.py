"""Sizes that are not known yet: integers that are written as text in the names of free sizes.

Of x of [batch_size, length, 64] the elements of a row are 64 and the rows are batch_size * length. A
`FreeSize` is both: a number, by which the compiler decides (here with 4 and 100), and what it writes.

>>> batch_size, length = FreeSize(4, {("batch_size",): 1}), FreeSize(100, {("length",): 1})
>>> rows = batch_size * length
>>> int(rows), f"row < {rows}", (rows, 64)
(400, 'row < (batch_size * length)', (batch_size * length, 64))
>>> rows * 64 // length, rows * 64 % 64, rows * 64 % 256
(batch_size * 64, 0, 0)

The last of these is the number's alone, which free sizes need not have. That no such number decides is seen
by compiling for several sizes (the builtin coder's `sizes/free.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

Terms: TypeAlias = Mapping[tuple[str, ...], int]  # coefficients of products of free sizes; () is the rest
Limits: TypeAlias = Mapping[str, tuple[int, int | None]]  # the least and the most, if any, of free sizes


class FreeSize(int):
    """A polynomial of free sizes, with its value at some of them."""

    terms: dict[tuple[str, ...], int]

    def __new__(cls, value: int, terms: Terms) -> FreeSize:
        self = super().__new__(cls, value)
        self.terms = {names: factor for names, factor in terms.items() if factor}
        return self

    def __repr__(self) -> str:
        words = [_product(names, factor) for names, factor in self.terms.items() if names]
        rest = self.terms.get((), 0)
        text = " + ".join([*words, *([str(rest)] if rest else [])])
        return text.replace("+ -", "- ")

    def __str__(self) -> str:
        """Text that may stand in any expression."""
        return repr(self) if repr(self).isidentifier() else f"({self!r})"

    def __format__(self, spec: str) -> str:
        return str(self)

    def __add__(self, other: int) -> int:
        return sized(int(self) + int(other), _sum(terms_of(self), terms_of(other)))

    def __sub__(self, other: int) -> int:
        return self + -other

    def __rsub__(self, other: int) -> int:
        return -self + other

    def __neg__(self) -> int:
        return self * -1

    def __mul__(self, other: int) -> int:
        found: dict[tuple[str, ...], int] = {}
        for names, factor in terms_of(self).items():
            for others, by in terms_of(other).items():
                both = tuple(sorted((*names, *others)))
                found[both] = found.get(both, 0) + factor * by
        return sized(int(self) * int(other), found)

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        return divided(self, other)

    def __rfloordiv__(self, other: int) -> int:
        return divided(other, self)

    def __mod__(self, other: int) -> int:
        return 0 if _exact(self, other) is not None else int(self) % int(other)

    def __rmod__(self, other: int) -> int:
        return 0 if _exact(other, self) is not None else int(other) % int(self)

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return other // self, other % self

    def __reduce__(self) -> tuple[Any, ...]:
        return FreeSize, (int(self), self.terms)


def sized(value: int, terms: Terms) -> int:
    """Return a `FreeSize`, or a number that no free size changes."""
    return FreeSize(value, terms) if any(factor and names for names, factor in terms.items()) else value


def terms_of(size: int) -> Terms:
    return size.terms if isinstance(size, FreeSize) else {(): int(size)}


def value_at(size: int, values: Mapping[str, int]) -> int:
    """Return what a size is where free sizes have these values."""
    return sum(factor * math.prod(map(values.__getitem__, names)) for names, factor in terms_of(size).items())


def is_free(*sizes: object) -> bool:
    """Return True if any of these depends on a free size."""
    return any(isinstance(size, FreeSize) for size in sizes)


def divided(size: int, by: int) -> int:
    """Return the quotient; a number where it is none of free sizes."""
    found = _exact(size, by)
    return int(size) // int(by) if found is None else found


def divides(by: int, size: int) -> bool:
    """Return True if a size is a multiple of a number, whatever the free sizes are."""
    return _exact(size, by) is not None if is_free(size) else size % by == 0


def is_one(size: int) -> bool:
    """Return True if a size is 1, whatever the free sizes are."""
    return size == 1 and not is_free(size)


def ceiling(size: int, by: int) -> int:
    """Return a quotient rounded up; of a free size an expression of its own, in Python and in Triton."""
    if not is_free(size) or _exact(size, by) is not None:
        return -(-size // by)
    return FreeSize(-(-int(size) // by), {(f"(({size!r} + {by - 1}) // {by})",): 1})


def _product(names: tuple[str, ...], factor: int) -> str:
    sign = "-" if factor < 0 else ""
    return " * ".join([f"{sign}{names[0]}", *names[1:], *([str(abs(factor))] if abs(factor) > 1 else [])])


def _sum(one: Terms, other: Terms) -> Terms:
    return {names: one.get(names, 0) + other.get(names, 0) for names in {**one, **other}}


def _exact(size: int, by: int) -> int | None:
    """Return the quotient by a single product of free sizes that divides every term."""
    divisor = {names: factor for names, factor in terms_of(by).items() if factor}
    if len(divisor) != 1:
        return None
    (names, factor), *_ = divisor.items()
    found = {}
    for own, number in terms_of(size).items():
        left = list(own)
        for name in names:
            if name not in left:
                return None
            left.remove(name)
        if number % factor:
            return None
        found[tuple(left)] = number // factor
    return sized(int(size) // int(by), found)
