"""Which computations share a kernel: maximal regions with one iteration space, formed greedily.

A region iterates over `numel` elements. Its values are elements, rows (elements reduced over one set of
axes) or scalars (rows or elements reduced over everything). A value may feed the level it belongs to and
elements may read rows; elements that need a scalar wait for the next kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.builtin.program import Compute, Library, Program, Reduce, Statement, View

Level = Literal["element", "row", "scalar"]
Fused = Compute | Reduce
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

    @property
    def axes(self) -> tuple[Interval, ...]:
        """All axes, outermost first."""
        return tuple(reversed(list(zip(self.cuts, self.cuts[1:], strict=False))))

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
    """The statements of one kernel, in order, over one space."""

    statements: tuple[Fused, ...]
    space: Space


def operands(statement: Statement, program: Program) -> list[View]:
    """The views a statement reads."""
    if isinstance(statement, Compute):
        return [o for o in statement.operands if isinstance(o, View)]
    if isinstance(statement, Reduce):
        return [statement.operand, *([statement.index] if statement.index else [])]
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
        if isinstance(statement, Reduce):
            result = "row" if math.prod(statement.shape) > 1 else "scalar"
            if level == "scalar" or (level == "row" and result == "row"):
                return None
            if result == "scalar" and statement.op in ("pick", "first"):
                return None
        levels[statement.name] = result
    ordered = tuple(sorted(cuts))
    if any(high % low for low, high in zip(ordered, ordered[1:], strict=False)):
        return None
    space = Space(numel, ordered, reduced, levels)
    if not row_cuts <= _row_cuts(space) or not all(_readable(s, space) for s in statements):
        return None
    return space


def _reduced_axes(statements: Sequence[Fused], numel: int) -> frozenset[Interval] | None:
    """The axes all partial reductions share; empty where there is none, None where they differ."""
    found: set[frozenset[Interval]] = set()
    for s in statements:
        if isinstance(s, Reduce) and s.operand.numel == numel and math.prod(s.shape) > 1:
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
    views = operands(statement, Program.__new__(Program))
    for view in views:
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


def fuse(program: Program, apart: bool = False) -> list[Region | Library]:
    """Regions and library calls in an order in which they can run.

    With `apart`, a reduction starts a new kernel instead of joining the one that computes its operand.
    """
    group_of: dict[str, int] = {}
    groups: dict[int, list[Fused]] = {}
    reads = {s.name: {v.base for v in operands(s, program)} for s in program.statements}
    order = {s.name: i for i, s in enumerate(program.statements)}
    for statement in program.statements:
        if isinstance(statement, Library):
            continue
        target = order[statement.name]
        groups[target] = [statement]
        group_of[statement.name] = target
        if apart and isinstance(statement, Reduce) and _computed(statement, groups, group_of):
            continue
        for choice in _choices(statement, groups, group_of, reads):
            members = sorted([s for g in (*choice, target) for s in groups[g]], key=lambda s: order[s.name])
            if analyse(members) is None:
                continue
            trial = {**group_of, **{s.name: target for s in members}}
            if _schedule(program.statements, reads, trial) is None:
                continue
            for g in choice:
                del groups[g]
            groups[target] = members
            group_of = trial
            break
    sequence = _schedule(program.statements, reads, group_of)
    assert sequence is not None
    libraries = {order[s.name]: s for s in program.statements if isinstance(s, Library)}
    plan: list[Region | Library] = []
    for key in sequence:
        if key in libraries:
            plan.append(libraries[key])
        else:
            space = analyse(groups[key])
            assert space is not None
            plan.append(Region(tuple(groups[key]), space))
    return plan


def _computed(statement: Reduce, groups: dict[int, list[Fused]], group_of: dict[str, int]) -> bool:
    base = statement.operand.base
    return base in group_of and any(s.name == base and isinstance(s, Compute) for s in groups[group_of[base]])


def _choices(
    statement: Fused, groups: dict[int, list[Fused]], group_of: dict[str, int], reads: dict[str, set[str]]
) -> Iterable[tuple[int, ...]]:
    """Sets of groups to merge with, best first: all producers, each of them, those that read the same."""
    mine = group_of[statement.name]
    producers = sorted({group_of[b] for b in reads[statement.name] if b in group_of} - {mine}, reverse=True)
    if producers:
        yield tuple(producers)
    if len(producers) > 1:
        yield from ((p,) for p in producers)
    for other, members in reversed(groups.items()):
        if other == mine or other in producers:
            continue
        shared = set().union(*(reads[m.name] for m in members)) & reads[statement.name]
        if shared:
            yield (*producers, other)
            yield (other,)


def _schedule(
    statements: Sequence[Statement], reads: dict[str, set[str]], group_of: dict[str, int]
) -> list[int] | None:
    """Groups and library calls in a runnable order, as near to the program's as may be; None for a cycle."""
    unit = {s.name: group_of.get(s.name, i) for i, s in enumerate(statements)}
    needs: dict[int, set[int]] = {}
    for s in statements:
        needs.setdefault(unit[s.name], set()).update(unit[b] for b in reads[s.name] if b in unit)
    for key, required in needs.items():
        required.discard(key)
    done: list[int] = []
    finished: set[int] = set()
    waiting = sorted(needs)
    while waiting:
        ready = next((key for key in waiting if needs[key] <= finished), None)
        if ready is None:
            return None
        waiting.remove(ready)
        done.append(ready)
        finished.add(ready)
    return done
