"""Fusion: greedy grouping of statements into regions that share one iteration space, each of them one kernel.

A statement joins the regions of its producers, or one that reads the same large value, if the union still has
an iteration space (`ir/space.py`) and makes no cycle. With x of [512, 1024], the task

    return x / x.sum(1, keepdim=True), x.mean(0)

is lowered to four statements and becomes two kernels:

    kernel over 512 × 1024 (reduced)
        %sum_1 = reduce sum(%x[512, 1024], axes [1]) : float32[512, 1]
        %div = div(%x[512, 1024], %sum_1[512×1, 1024×0]) : float32[512, 1024]
    kernel over 512 (reduced) × 1024
        %sum_2 = reduce sum(%x[512, 1024], axes [0]) : float32[1024]
        %div_1 = div(%sum_2[1024], 512) : float32[1024]

%div reads %sum_1 and has a row of 1024 elements for each of its 512 values, so it joins it. %sum_2 reads the
same 524,288 elements of %x, which would be worth one loop for both; but it reduces the other axis, and no
iteration space has rows along both. So %x is read by two kernels.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from itertools import pairwise

from kernelwright.agent.builtin.ir.program import (
    Attention,
    Compute,
    Fused,
    Joined,
    Library,
    Program,
    Recurrence,
    Reduce,
    Scan,
    Statement,
    views_of,
)
from kernelwright.agent.builtin.ir.space import Region, analyse
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.builtin.ir.uses import Unit, Uses, operands, ordered

# Elements read by two statements that make one loop for both worthwhile. 64 updates of 2048 elements each
# took 1.7 ms in one kernel and 1.3 ms in one each (docs/LOG.md, 2026-11-23, "Concatenations, few vectors,
# long columns and rows").
_LARGE = 4096
_ALONE = Library | Attention | Recurrence | Joined  # statements that share no kernel


def fuse(program: Program, apart: bool = False, again: Set[str] = frozenset()) -> list[Unit]:
    """Group statements into regions, attentions and library calls, in an order in which they can run.

    With `apart`, a reduction starts a new kernel instead of joining the one that computes its operand. The
    values `again` join the kernel of the one statement that reads them.
    """
    fusion = _Fusion(program, again)
    for name in program.placed:
        assert sum(name in reads for reads in fusion.reads.values()) == 1, name
    for statement in program.statements:
        if not isinstance(statement, _ALONE) and statement.name not in again:
            fusion.add(statement, apart)
    return fusion.units()


def _large_parts(statement: Fused) -> Iterator[Hashable]:
    """Large parts of values that a statement reads, which are worth one read for two statements."""
    for view in views_of(statement):
        elements = math.prod(s for s, stride in zip(view.shape, view.strides, strict=True) if stride)
        if elements >= min(_LARGE, view.numel / 2):
            yield (view.base, view.numel) if view.linear else view


def _ends(program: Program) -> dict[str, Reduce | Scan]:
    """Reductions and scans, by the values that are computed for one of them alone."""
    uses = Uses(program)
    found: dict[str, Reduce | Scan] = {}
    for statement in reversed(program.statements):
        only = uses.readers(statement.name)
        if len(only) != 1 or not isinstance(statement, Compute):
            continue
        reader = only[0]
        if isinstance(reader, Reduce | Scan):
            found[statement.name] = reader
        elif reader.name in found:
            found[statement.name] = found[reader.name]
    return found


def _scans_that_wait(program: Program, reads: Mapping[str, Set[str]]) -> list[tuple[str, str]]:
    """Return scans with reductions of the same elements, after which alone something becomes of a scan.

    Such a scan shares a region with its reader, where it is not stored, and not with the reduction.
    """
    reductions = [s for s in program.statements if isinstance(s, Reduce)]
    found, uses = [], Uses(program)
    for scan in (s for s in program.statements if isinstance(s, Scan)):
        readers = uses.readers(scan.name)
        if len(readers) != 1 or not isinstance(readers[0], Compute) or scan.name in uses.returned:
            continue
        for reduction in reductions:
            if reduction.operand != scan.operand:
                continue
            after = {reduction.name}  # what depends on it
            for statement in program.statements:
                if reads[statement.name] & after:
                    after.add(statement.name)
            between = _needed(readers[0].name, reads) & after
            if between and _outside([scan, *readers], between, program):
                found.append((scan.name, reduction.name))
    return found


def _needed(name: str, reads: Mapping[str, Set[str]]) -> set[str]:
    """Names of all that a statement depends on."""
    found: set[str] = set()
    todo = [name]
    while todo:
        for base in reads.get(todo.pop(), ()):
            if base not in found:
                found.add(base)
                todo.append(base)
    return found


def _outside(statements: Sequence[Statement], between: Set[str], program: Program) -> bool:
    """Return True if no region has these statements with all that lie between."""
    names = {s.name for s in statements} | between
    whole = [s for s in program.statements if s.name in names]
    fused = [s for s in whole if not isinstance(s, _ALONE)]
    return len(fused) < len(whole) or analyse(fused) is None


def _in_turn(statement: Statement) -> bool:
    return isinstance(statement, Library) and statement.node.in_turn


class _Fusion:
    """Greedy: each statement joins the regions it reads from, or one that reads the same, if it can."""

    def __init__(self, program: Program, again: Set[str]) -> None:
        self.program, self.again = program, again
        self.order = {s.name: i for i, s in enumerate(program.statements)}
        self.reads = {s.name: {v.base for v in operands(s, program)} for s in program.statements}
        for before, after in pairwise(s for s in program.statements if _in_turn(s)):
            self.reads[after.name].add(before.name)
        self.members: dict[int, list[Statement]] = {i: [s] for i, s in enumerate(program.statements)}
        for statement in program.statements:
            if isinstance(statement, Recurrence):
                place = self.order[statement.name]
                self.order.update({view.base: place for view in statement.results.values()})
        self.unit = dict(self.order)
        self.readers: dict[Hashable, list[str]] = {}  # the fused statements that read a part of a value
        self.ends_in = _ends(program)
        self.apart: list[tuple[str, str]] = []  # pairs that must not share a region
        self.apart += _scans_that_wait(program, self.reads)
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
        for base in sorted(self.reads[statement.name] & self.again):
            both = sorted(
                (*self.members[self.unit[base]], *self.members[mine]), key=lambda s: self.order[s.name]
            )
            fits = analyse([s for s in both if not isinstance(s, _ALONE)]) is not None
            if fits and not self.makes_cycle(both):
                del self.members[self.unit[base]]
                self.members[mine], self.unit[base] = both, mine
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
        """Return True if a value must never be stored: larger than all its operands together, or clipped."""
        if name not in self.reads or isinstance(self.program.statements[self.order[name]], Library):
            return False
        read = sum(math.prod(self.program.shapes[base]) for base in self.reads[name])
        larger = math.prod(self.program.shapes[name]) > read
        return larger or name in self.clipped or name in self.program.unstored

    def separated(self, merged: list[Statement]) -> bool:
        names = {s.name for s in merged}
        return any(a in names and b in names for a, b in self.apart)

    def bound_apart(self, fused: Sequence[Fused]) -> bool:
        """Return True if a reduction that values of the region are computed for alone could not join it."""
        numel = max(math.prod(s.shape) if isinstance(s, Compute) else s.operand.numel for s in fused)
        waiting = (self.ends_in.get(s.name) for s in fused)
        ahead = {r.name: r for r in waiting if r is not None and r.operand.numel == numel}
        return bool(ahead) and analyse([*fused, *ahead.values()]) is None

    def choices(self, statement: Fused) -> Iterator[tuple[int, ...]]:
        """Units to merge with, best first: all producers, each of them, those that read the same values."""
        producers: dict[int, None] = {}
        for base in self.reads[statement.name] - self.again:
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
        """Return True if something outside depends on one of `merged` and is needed by another."""
        inside = {s.name for s in merged}
        todo = [base for name in inside for base in self.reads[name] if base not in inside]
        seen: set[int] = set()
        while todo:
            name = todo.pop()
            if name in inside:
                return True
            if name not in self.unit or self.unit[name] in seen:
                continue
            seen.add(self.unit[name])
            todo += [base for s in self.members[self.unit[name]] for base in self.reads[s.name]]
        return False

    def units(self) -> list[Unit]:
        """Units in an order in which they can run, as near to the program's as possible."""
        waiting: dict[int, set[int]] = {}
        for key, members in self.members.items():
            needed = {self.unit[base] for s in members for base in self.reads[s.name] if base in self.unit}
            waiting[key] = needed - {key}
        found: list[Unit] = []
        for key in ordered(waiting):
            first = self.members[key][0]
            if isinstance(first, Library | Attention):
                found.append(first)
            elif isinstance(first, Recurrence):
                space = analyse(first.body)
                assert space is not None
                found.append(Region(first.body, space, first))
            elif not isinstance(first, Joined):  # which asks for nothing to be done
                fused = [s for s in self.members[key] if not isinstance(s, _ALONE)]
                space = analyse(fused)
                assert space is not None
                if any(s.name in self.clipped for s in fused) and not space.reduced:
                    raise Untraceable("windows with edges could not be reduced where they are computed")
                if any(isinstance(s, Compute) and s.op == "ranked" for s in fused) and not space.reduced:
                    raise Untraceable("ranks could not be reduced where they are computed")
                found.append(Region(tuple(fused), space))
        return found
