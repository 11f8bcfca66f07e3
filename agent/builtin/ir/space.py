"""Iteration spaces: the axes that the statements of a kernel share, and those that a row is reduced over.

A region iterates over `numel` elements. Its values are elements, rows (elements reduced over one set of
axes) or scalars (rows or elements reduced over everything). A value may feed the level it belongs to and
elements may read rows; elements that need a scalar wait for the next kernel.

The maximum of each of 2048 rows of 4096, and the difference from it, as in a softmax:

>>> x = View("x", (2048, 4096), (4096, 1))
>>> largest = Reduce("amax", "amax", x, (1,), (2048, 1), "float32")
>>> row = View("amax", (2048, 4096), (1, 0))  # read once for each element of its row
>>> below = Compute("sub", "sub", (x, row), {}, (2048, 4096), "float32", "float32")
>>> space = analyse([largest, below])
>>> space.axes  # intervals of the linear index: 2048 rows, and 4096 neighbours within each
((4096, 8388608), (1, 4096))
>>> space.reduced, space.rows
(frozenset({(1, 4096)}), 2048)
>>> space.levels
{'amax': 'row', 'sub': 'element'}

The maximum of each column needs rows along the other axis, so it shares no kernel with these:

>>> columns = Reduce("by_column", "amax", x, (0,), (4096,), "float32")
>>> analyse([largest, columns]) is None
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from kernelwright.agent.builtin.ir.program import (
    Clip,
    Compute,
    Fused,
    Recurrence,
    Reduce,
    Scan,
    View,
    contiguous_axis,
    views_of,
)

Level = Literal["element", "row", "scalar"]
Interval = tuple[int, int]  # of the linear index: [low, high) in steps of low


@dataclass(frozen=True)
class Space:
    """The iteration space of a region.

    `cuts` are the divisors of the linear index at which axes begin and end, from 1 to `numel`; between two
    neighbours lies one axis. `reduced` are the axes that row values are reduced over.
    """

    numel: int
    cuts: tuple[int, ...]
    reduced: frozenset[Interval]
    levels: dict[str, Level]
    clips: frozenset[tuple[Interval, Interval, Clip]] = frozenset()  # windows, elements

    @property
    def axes(self) -> tuple[Interval, ...]:
        """All axes, outermost first."""
        return tuple(reversed(list(pairwise(self.cuts))))

    def is_reduced(self, axis: Interval) -> bool:
        return any(low <= axis[0] and axis[1] <= high for low, high in self.reduced)

    @property
    def rows(self) -> int:
        return math.prod(high // low for low, high in self.axes if not self.is_reduced((low, high)))

    def strides(self, view: View, level: Level = "element") -> tuple[int, ...]:
        """Strides of a view over the axes of its level, outermost first."""
        if level == "scalar":
            return ()
        axes = [a for a in self.axes if level == "element" or not self.is_reduced(a)]
        sizes = [high // low for low, high in axes]
        found: list[int] = []
        dims = [(s, t) for s, t in zip(view.shape, view.strides, strict=True) if s > 1]
        for size in reversed(sizes):
            dim, stride = dims[-1]
            found.append(stride)
            dims[-1] = (dim // size, stride * size)
            if dims[-1][0] == 1:
                dims.pop()
        return tuple(reversed(found))

    def row_strides(self) -> tuple[int, ...]:
        """Strides of a contiguous row value over all axes."""
        found, step = [], 1
        for axis in reversed(self.axes):
            found.append(0 if self.is_reduced(axis) else step)
            step *= 1 if self.is_reduced(axis) else axis[1] // axis[0]
        return tuple(reversed(found))


@dataclass(frozen=True)
class Region:
    """The statements of one kernel, in order, over one space; with a recurrence, those of one step."""

    statements: tuple[Fused, ...]
    space: Space
    recurrence: Recurrence | None = None


def analyse(statements: Sequence[Fused]) -> Space | None:
    """Return the space of a region, or None where the statements do not fit into one."""
    sizes = [math.prod(s.shape) if isinstance(s, Compute) else s.operand.numel for s in statements]
    numel = max(sizes)
    reduced = _reduced_axes(statements, numel)
    if reduced is None or not _in_their_rows(statements, numel, reduced):
        return None
    rows = numel // math.prod(high // low for low, high in reduced) if reduced else 0
    cuts, row_cuts = {1, numel}, {1}
    for low, high in reduced:
        cuts |= {low, high}
    levels: dict[str, Level] = {}
    for statement, size in zip(statements, sizes, strict=True):
        level = _level(size, numel, rows)
        if level is None:
            return None
        shape = statement.shape if isinstance(statement, Compute) else statement.operand.shape
        if level == "element":
            cuts |= _cuts(shape)
        elif level == "row":
            row_cuts |= _cuts(shape)
        result = level
        if isinstance(statement, Scan) and level != "element":
            return None
        if isinstance(statement, Reduce):
            result = "row" if math.prod(statement.shape) > 1 else "scalar"
            if level == "scalar" or (level == "row" and result == "row"):
                return None
            if result == "scalar" and statement.op in ("pick", "first"):
                return None
        levels[statement.name] = result
    if _picks_from_scans(statements):
        return None
    ordered = tuple(sorted(cuts))
    if any(high % low for low, high in pairwise(ordered)):
        return None
    clips = _clips(statements, numel)
    if clips is None or not _turned_alike(statements, numel):
        return None
    space = Space(numel, ordered, reduced, levels, clips)
    if not all(interval in space.axes for *both, _ in clips for interval in both):
        return None
    if not row_cuts <= _row_cuts(space) or not all(_readable(s, space) for s in statements):
        return None
    return space


def _picks_from_scans(statements: Sequence[Fused]) -> bool:
    """Return True if one element alone is picked from what only a walk through the whole row gives."""
    walked: set[str] = set()
    for s in statements:
        if isinstance(s, Scan) or any(v.base in walked for v in views_of(s)):
            if isinstance(s, Reduce) and s.op == "pick" and s.operand.base in walked:
                return True
            walked.add(s.name)
    return False


def _in_their_rows(statements: Sequence[Fused], numel: int, reduced: frozenset[Interval]) -> bool:
    """Return True if rows are those that ranks are computed in, from places of elements; or may yet be."""
    ranks = [s for s in statements if isinstance(s, Compute) and s.op == "ranked"]
    if not ranks:
        return True
    if any(math.prod(s.shape) != numel for s in ranks) or any(
        contiguous_axis(v) is not None for s in statements for v in views_of(s)
    ):
        return False
    along = {_intervals(s.shape, (s.settings["dim"],)) for s in ranks}  # type: ignore[arg-type]
    return len(along | {reduced or next(iter(along))}) == 1


def _turned_alike(statements: Sequence[Fused], numel: int) -> bool:
    """Return True if all that is read in another order of axes can be transposed in the same tiles."""
    axes = {contiguous_axis(v) for s in statements for v in views_of(s)} - {None}
    if not axes:
        return True
    if any(v.table for s in statements for v in views_of(s)):
        return False
    return len(axes) == 1 and all(isinstance(s, Compute) and math.prod(s.shape) == numel for s in statements)


def _clips(statements: Sequence[Fused], numel: int) -> frozenset[tuple[Interval, Interval, Clip]] | None:
    """Clips that all elements have; None where they differ, or other values are clipped."""
    found: dict[str, frozenset[tuple[Interval, Interval, Clip]]] = {}
    for statement in statements:
        views = [v for v in views_of(statement) if v.numel == numel or v.clips]
        if not views:
            continue
        if any(v.numel != numel for v in views):
            return None
        mine = {found.get(v.base, frozenset(_clip_axes(v))) for v in views}
        if len(mine - {frozenset()}) > 1:
            return None
        found[statement.name] = max(mine, key=len)
    if len(set(found.values())) > 1:
        return None
    return next(iter(found.values()), frozenset())


def _clip_axes(view: View) -> Iterator[tuple[Interval, Interval, Clip]]:
    for clip in view.clips:
        windows, elements = (
            (math.prod(view.shape[axis + 1 :]), math.prod(view.shape[axis:]))
            for axis in (clip.windows, clip.elements)
        )
        yield windows, elements, clip


def _reduced_axes(statements: Sequence[Fused], numel: int) -> frozenset[Interval] | None:
    """Return the axes that all partial reductions and scans share; None where they differ."""
    found: set[frozenset[Interval]] = set()
    for s in statements:
        if not isinstance(s, Compute) and s.operand.numel == numel and math.prod(s.shape) > 1:
            found.add(_intervals(s.operand.shape, s.dims))
    if len(found) > 1:
        return None
    return next(iter(found), frozenset())


def _intervals(shape: tuple[int, ...], dims: tuple[int, ...]) -> frozenset[Interval]:
    merged: list[Interval] = []
    step = math.prod(shape)
    for dim, size in enumerate(shape):
        high, step = step, step // size
        if dim in dims and size > 1:
            if merged and merged[-1][0] == high:
                merged[-1] = (step, merged[-1][1])
            else:
                merged.append((step, high))
    return frozenset(merged)


def _level(size: int, numel: int, rows: int) -> Level | None:
    if size == numel:
        return "element"
    if size == rows:
        return "row"
    return "scalar" if size == 1 else None


def _cuts(shape: tuple[int, ...]) -> set[int]:
    found, step = {1}, 1
    for size in reversed(shape):
        step *= size
        found.add(step)
    return found


def _row_cuts(space: Space) -> set[int]:
    found, step = {1}, 1
    for low, high in reversed(space.axes):
        if not space.is_reduced((low, high)):
            step *= high // low
            found.add(step)
    return found


def _readable(statement: Fused, space: Space) -> bool:
    """Return True if the statement can read its operands inside the region."""
    if isinstance(statement, Compute):
        level: Level = space.levels[statement.name]
    else:
        level = "element" if statement.operand.numel == space.numel else "row"
    for view in views_of(statement):
        source = space.levels.get(view.base)
        if isinstance(statement, Reduce) and view is statement.index:
            if not space.reduced or min(space.reduced)[0] != 1 or len(space.reduced) != 1:
                return False
            if source is not None and source != "row":
                return False
            continue
        if source is None:
            continue
        if view.table:
            return False
        if source == level:
            if not view.linear and level != "scalar":
                return False
        elif level == "element" and source == "row":
            if space.strides(view) != space.row_strides() or view.offset:
                return False
        else:
            return False
    return True
