"""One form of several that differ in sizes alone: numbers that differ become polynomials of free sizes.

A forward traced with 17 rows, and one with 29, hold an `expand` to [17, 64] and one to [29, 64]. Through 17
and 29, where 17 and 29 rows were traced, goes the line 0 + 1 * rows, and so the unified form expands to
[rows, 64]. A third form, traced with 41 rows, has to have 41 there; if it has not, or if the forms differ in
anything else, the free size decides more than sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from itertools import product
from typing import Any, TypeVar

from pydantic import BaseModel

from kernelwright.kernelbench.free_sizes.size import Terms, sized, terms_of

T = TypeVar("T")


class SizesDecide(Exception):  # noqa: N818 - a property of what is compared, not a fault
    """Forms that differ in more than sizes; the message says in what."""


@dataclass(frozen=True)
class Grid:
    """Values of free sizes at which a form is made: all pairs of two each, and further ones as a check."""

    low: Mapping[str, int]
    high: Mapping[str, int]
    checks: tuple[Mapping[str, int], ...]

    @classmethod
    def near(cls, sizes: Mapping[str, int], smallest: int, taken: Set[int] = frozenset()) -> Grid:
        """Return a grid of primes near these sizes, each once, from `smallest` on; none is in `taken`."""
        found: list[dict[str, int]] = []
        used = set(taken)
        for _ in range(3):
            point = {}
            for name, size in sizes.items():
                point[name] = next(primes(max(size, smallest), used))
                used.add(point[name])
            found.append(point)
        return cls(found[0], found[1], (found[2],))

    @property
    def points(self) -> list[Mapping[str, int]]:
        pairs = product(*((self.low[name], self.high[name]) for name in self.low))
        return [*(dict(zip(self.low, values, strict=True)) for values in pairs), *self.checks]

    def named(self, names: Mapping[str, str]) -> Grid:
        """Return the grid with other names."""
        points = (self.low, self.high, *self.checks)
        low, high, *checks = ({names[name]: size for name, size in point.items()} for point in points)
        return Grid(low, high, tuple(checks))

    def fitted(self, values: Sequence[int]) -> Terms | None:
        """Coefficients of the polynomial that has these values at the points; None where there is none."""
        for powers in product((0, 1, 2), repeat=len(self.low)):
            names = tuple(name for name, power in zip(self.low, powers, strict=True) for _ in range(power))
            factor, rest = divmod(values[0], value_of({names: 1}, self.points[0]))
            term = {tuple(sorted(names)): factor}
            if not rest and all(value_of(term, p) == v for p, v in zip(self.points, values, strict=True)):
                return term
        corners = len(values) - len(self.checks)
        found = _interpolated(values[:corners], list(self.low), self)
        if any(factor.denominator != 1 for factor in found.values()):
            return None
        terms = {names: int(factor) for names, factor in found.items() if factor}
        checked = zip(self.checks, values[corners:], strict=True)
        return terms if all(value_of(terms, point) == value for point, value in checked) else None


def unified(forms: Sequence[T], grid: Grid, base: int = 0) -> T:
    """Return the form of which each of `forms` is that at one of the grid's points.

    Its sizes have the values of the point with the number `base`. Raises SizesDecide where there is none.
    """

    def number(values: Sequence[int], where: str) -> int:
        if len(set(values)) == 1:
            return values[0]
        terms = grid.fitted(values)
        if terms is None:
            raise _differing(where)
        return sized(values[base], terms)

    found: T = _Rebuilding(number).one(forms, "")
    return found


def at(form: T, point: Mapping[str, int]) -> T:
    """Return a form at these values of its free sizes."""

    def number(values: Sequence[int], where: str) -> int:
        return value_of(terms_of(values[0]), point)

    found: T = _Rebuilding(number).one([form], "")
    return found


class _Rebuilding:
    """Builder of one form from several, number by number."""

    def __init__(self, number: Callable[[Sequence[int], str], int]) -> None:
        self.number = number
        self.known: dict[tuple[int, ...], Any] = {}  # what is shared stays shared

    def one(self, forms: Sequence[Any], where: str) -> Any:
        first = forms[0]
        if isinstance(first, int) and not isinstance(first, bool):
            if any(isinstance(form, bool) or not isinstance(form, int) for form in forms):
                raise _differing(where)
            return self.number(forms, where)
        if any(type(form) is not type(first) for form in forms):
            raise _differing(where)
        if isinstance(first, float) and len(set(forms)) > 1 and all(map(float.is_integer, forms)):
            return self.number([int(form) for form in forms], where)  # of elements, which a mean divides by
        if not isinstance(first, tuple | list | Mapping | Set | BaseModel) and not _is_a_record(first):
            if any(repr(form) != repr(first) for form in forms):
                raise _differing(where)
            return first
        key = tuple(map(id, forms))
        if key not in self.known:
            self.known[key] = self.whole(forms, where)
        return self.known[key]

    def whole(self, forms: Sequence[Any], where: str) -> Any:
        kind: Any = type(forms[0])
        if issubclass(kind, Mapping):
            keys = self.many([tuple(form) for form in forms], where)
            return dict(zip(keys, self.many([tuple(form.values()) for form in forms], where), strict=True))
        if issubclass(kind, Set):
            return kind(self.many([_in_order(form) for form in forms], where))
        if issubclass(kind, tuple | list):
            return kind(self.many(forms, where))
        name = getattr(forms[0], "name", "")
        where = name if isinstance(name, str) and name else where
        names = kind.model_fields if issubclass(kind, BaseModel) else [field.name for field in fields(kind)]
        own = {name: self.one([getattr(form, name) for form in forms], where or name) for name in names}
        return kind.model_construct(**own) if issubclass(kind, BaseModel) else kind(**own)

    def many(self, forms: Sequence[Sequence[Any]], where: str) -> list[Any]:
        if len({len(form) for form in forms}) > 1:
            raise _differing(where)
        return [self.one(items, where) for items in zip(*forms, strict=True)]


def _is_a_record(form: Any) -> bool:
    return is_dataclass(form) and not isinstance(form, type)


def _differing(where: str) -> SizesDecide:
    what = {"nodes": "what forward does", "constructor": "what get_init_inputs returns"}.get(where, where)
    return SizesDecide(f"{what or 'a number'} depends on the free sizes, and not in its shape alone")


def _in_order(form: Set[Any]) -> list[Any]:
    return sorted(form, key=lambda item: item if isinstance(item, tuple | str | int) else repr(item))


def _interpolated(values: Sequence[int], names: Sequence[str], grid: Grid) -> dict[tuple[str, ...], Fraction]:
    """Polynomial that is linear in each name, through the values at the corners of the grid."""
    if not names:
        return {(): Fraction(values[0])}
    name, *rest = names
    low, high = grid.low[name], grid.high[name]
    half = len(values) // 2
    one, other = (_interpolated(part, rest, grid) for part in (values[:half], values[half:]))
    found = {}
    for own in {**one, **other}:
        slope = (other.get(own, Fraction()) - one.get(own, Fraction())) / (high - low)
        found[own] = one.get(own, Fraction()) - slope * low
        found[tuple(sorted((name, *own)))] = slope
    return found


def value_of(terms: Terms, point: Mapping[str, int]) -> int:
    total = 0
    for names, factor in terms.items():
        for name in names:
            factor *= point[name]
        total += factor
    return total


def primes(begin: int, taken: Set[int] = frozenset()) -> Iterator[int]:
    """Yield primes from `begin` on, none of which is a multiple of another."""
    number = max(begin, 2)
    while True:
        if number not in taken and all(number % by for by in range(2, int(number**0.5) + 1)):
            yield number
        number += 1
