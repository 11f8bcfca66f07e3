"""Which computations share a kernel: maximal regions with one iteration space, formed greedily.

A region iterates over `numel` elements. Its values are elements, rows (elements reduced over one set of
axes) or scalars (rows or elements reduced over everything). A value may feed the level it belongs to and
elements may read rows; elements that need a scalar wait for the next kernel.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Literal, TypeAlias

from agent.builtin.program import (
    Attention,
    Clip,
    Compute,
    Fused,
    Joined,
    Library,
    Program,
    Recurrence,
    Reduce,
    Scan,
    Statement,
    View,
    contiguous_axis,
    views_of,
)
from agent.builtin.untraceable import Untraceable

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


Unit: TypeAlias = Region | Attention | Library

_LARGE = 4096  # elements that make it worth sharing a loop
_ALONE = Library | Attention | Recurrence | Joined  # statements that share no kernel


def operands(statement: Statement, program: Program) -> list[View]:
    """The views a statement reads."""
    if not isinstance(statement, Library):
        return list(views_of(statement))
    found = []
    for name in statement.node.inputs:
        view = program.views.get(name)
        found.append(view if isinstance(view, View) else View(name, (), ()))
    return found


def analyse(statements: Sequence[Fused]) -> Space | None:
    """The space of a region, or None where the statements do not fit into one."""
    sizes = [math.prod(s.shape) if isinstance(s, Compute) else s.operand.numel for s in statements]
    numel = max(sizes)
    reduced = _reduced_axes(statements, numel)
    if reduced is None:
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
    """Whether one element alone is asked of what only a walk through the whole row gives."""
    walked: set[str] = set()
    for s in statements:
        if isinstance(s, Scan) or any(v.base in walked for v in views_of(s)):
            if isinstance(s, Reduce) and s.op == "pick" and s.operand.base in walked:
                return True
            walked.add(s.name)
    return False


def _turned_alike(statements: Sequence[Fused], numel: int) -> bool:
    """Whether all that is read in another order of axes can be turned in the same tiles."""
    axes = {contiguous_axis(v) for s in statements for v in views_of(s)} - {None}
    if not axes:
        return True
    return len(axes) == 1 and all(isinstance(s, Compute) and math.prod(s.shape) == numel for s in statements)


def _clips(statements: Sequence[Fused], numel: int) -> frozenset[tuple[Interval, Interval, Clip]] | None:
    """What all elements are clipped by; None where only some are, or not all alike, or something else is."""
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
    """The axes all partial reductions and scans share; empty where there is none, None where they differ."""
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
    """Whether the statement can read its operands inside the region."""
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
        if source == level:
            if not view.linear and level != "scalar":
                return False
        elif level == "element" and source == "row":
            if space.strides(view) != space.row_strides() or view.offset:
                return False
        else:
            return False
    return True


def fuse(program: Program, apart: bool = False) -> list[Unit]:
    """Regions, attentions and library calls in an order in which they can run.

    With `apart`, a reduction starts a new kernel instead of joining the one that computes its operand.
    """
    fusion = _Fusion(program)
    for name in program.placed:
        assert sum(name in reads for reads in fusion.reads.values()) == 1, name
    for statement in program.statements:
        if not isinstance(statement, _ALONE):
            fusion.add(statement, apart)
    return fusion.units()


def _large_parts(statement: Fused) -> Iterator[Hashable]:
    """What is worth being read once for two statements."""
    for view in views_of(statement):
        elements = math.prod(s for s, stride in zip(view.shape, view.strides, strict=True) if stride)
        if elements >= min(_LARGE, view.numel / 2):
            yield (view.base, view.numel) if view.linear else view


def _ends(program: Program, reads: Mapping[str, set[str]]) -> dict[str, Reduce | Scan]:
    """The reduction that a value is computed for, where it is for one alone."""
    readers: dict[str, list[Statement]] = {}
    for statement in program.statements:
        for base in reads[statement.name]:
            readers.setdefault(base, []).append(statement)
    found: dict[str, Reduce | Scan] = {}
    for statement in reversed(program.statements):
        only = readers.get(statement.name, [])
        if len(only) != 1 or not isinstance(statement, Compute):
            continue
        reader = only[0]
        if isinstance(reader, Reduce | Scan):
            found[statement.name] = reader
        elif reader.name in found:
            found[statement.name] = found[reader.name]
    return found


class _Fusion:
    """Greedy: each statement joins the regions it reads from, or one that reads the same, if it can."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.order = {s.name: i for i, s in enumerate(program.statements)}
        self.reads = {s.name: {v.base for v in operands(s, program)} for s in program.statements}
        self.members: dict[int, list[Statement]] = {i: [s] for i, s in enumerate(program.statements)}
        for statement in program.statements:
            if isinstance(statement, Recurrence):
                place = self.order[statement.name]
                self.order.update({view.base: place for view in statement.results.values()})
        self.unit = dict(self.order)
        self.readers: dict[Hashable, list[str]] = {}  # the fused statements that read a part of a value
        self.ends_in = _ends(program, self.reads)
        self.apart: list[tuple[str, str]] = []  # pairs that must not share a region
        self.clipped: set[str] = set()  # values computed for elements of windows that may not be there
        for s in program.statements:
            if isinstance(s, Compute) and any(
                v.clips or v.base in self.clipped for v in operands(s, program)
            ):
                self.clipped.add(s.name)

    def add(self, statement: Fused, apart: bool) -> None:
        mine = self.unit[statement.name]
        if apart and isinstance(statement, Reduce) and not self.must_not_exist(statement.operand.base):
            self.apart.append((statement.name, statement.operand.base))
        for choice in self.choices(statement):
            merged = [s for unit in (*choice, mine) for s in self.members[unit]]
            merged.sort(key=lambda s: self.order[s.name])
            fused = [s for s in merged if not isinstance(s, _ALONE)]
            if self.separated(merged) or analyse(fused) is None or self.makes_cycle(merged):
                continue
            if self.bound_apart(fused):
                continue
            for unit in choice:
                del self.members[unit]
            self.members[mine] = merged
            self.unit.update({s.name: mine for s in merged})
            break
        for part in _large_parts(statement):
            self.readers.setdefault(part, []).append(statement.name)

    def must_not_exist(self, name: str) -> bool:
        """Whether a value must never be in memory: larger than all that it is computed from, or clipped."""
        if name not in self.reads or isinstance(self.program.statements[self.order[name]], Library):
            return False
        read = sum(math.prod(self.program.shapes[base]) for base in self.reads[name])
        larger = math.prod(self.program.shapes[name]) > read
        return larger or name in self.clipped or name in self.program.unstored

    def separated(self, merged: list[Statement]) -> bool:
        names = {s.name for s in merged}
        return any(a in names and b in names for a, b in self.apart)

    def bound_apart(self, fused: Sequence[Fused]) -> bool:
        """Whether reductions, for which alone values of a region are computed, could not join it."""
        numel = max(math.prod(s.shape) if isinstance(s, Compute) else s.operand.numel for s in fused)
        waiting = (self.ends_in.get(s.name) for s in fused)
        ahead = {r.name: r for r in waiting if r is not None and r.operand.numel == numel}
        return bool(ahead) and analyse([*fused, *ahead.values()]) is None

    def choices(self, statement: Fused) -> Iterator[tuple[int, ...]]:
        """Units to merge with, best first: all producers, each of them, those that read the same values."""
        producers: dict[int, None] = {}
        for base in self.reads[statement.name]:
            if base in self.unit and not isinstance(self.members[self.unit[base]][0], _ALONE):
                producers[self.unit[base]] = None
        last_first = tuple(sorted(producers, reverse=True))
        if last_first:
            yield last_first
        if len(last_first) > 1:
            yield from ((unit,) for unit in last_first)
        shared = [n for part in _large_parts(statement) for n in self.readers.get(part, ())]
        siblings = dict.fromkeys(self.unit[name] for name in reversed(shared))
        for unit in siblings:
            if unit not in producers:
                yield (*last_first, unit)
                yield (unit,)

    def makes_cycle(self, merged: list[Statement]) -> bool:
        """Whether something outside depends on one of `merged` and is needed by another."""
        inside = {s.name for s in merged}
        lowest = self.order[merged[0].name]
        todo = [base for name in inside for base in self.reads[name] if base not in inside]
        seen: set[int] = set()
        while todo:
            name = todo.pop()
            if name in inside:
                return True
            if name not in self.unit or self.unit[name] in seen:
                continue
            seen.add(self.unit[name])
            unit = self.members[self.unit[name]]
            if self.order[unit[-1].name] > lowest:  # earlier ones cannot depend on `merged`
                todo += [base for s in unit for base in self.reads[s.name]]
        return False

    def units(self) -> list[Unit]:
        """In an order in which they can run, as near to the program's as may be."""
        waiting: dict[int, set[int]] = {}
        for key, members in self.members.items():
            needed = {self.unit[base] for s in members for base in self.reads[s.name] if base in self.unit}
            waiting[key] = needed - {key}
        followers: dict[int, list[int]] = {}
        for key, needed in waiting.items():
            for other in needed:
                followers.setdefault(other, []).append(key)
        ready = [key for key, needed in waiting.items() if not needed]
        heapify(ready)
        found: list[Unit] = []
        joined = 0  # which ask for nothing to be done
        while ready:
            key = heappop(ready)
            first = self.members[key][0]
            if isinstance(first, Library | Attention):
                found.append(first)
            elif isinstance(first, Joined):
                joined += 1
            elif isinstance(first, Recurrence):
                space = analyse(first.body)
                assert space is not None
                found.append(Region(first.body, space, first))
            else:
                fused = [s for s in self.members[key] if not isinstance(s, _ALONE)]
                space = analyse(fused)
                assert space is not None
                if any(s.name in self.clipped for s in fused) and not space.reduced:
                    raise Untraceable("windows with edges could not be reduced where they are computed")
                found.append(Region(tuple(fused), space))
            for follower in followers.get(key, ()):
                waiting[follower].discard(key)
                if not waiting[follower]:
                    heappush(ready, follower)
        assert len(found) + joined == len(self.members)
        return found
