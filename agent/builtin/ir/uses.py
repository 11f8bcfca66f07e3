"""Uses of values: operands of statements, readers of values, values that are stored, and orders to run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from kernelwright.agent.builtin.ir.program import Attention, Library, Program, Statement, View, views_of
from kernelwright.agent.builtin.ir.space import Region

Unit: TypeAlias = Region | Attention | Library


def operands(statement: Statement, program: Program) -> list[View]:
    """Return the views a statement reads."""
    if not isinstance(statement, Library):
        return list(views_of(statement))
    found = []
    for name in statement.node.inputs:
        view = program.views.get(name)
        found.append(view if isinstance(view, View) else View(name, (), ()))
    return found


def statements_of(unit: Unit) -> Sequence[Statement]:
    """Return the statements of a kernel, or the one library call or attention."""
    return unit.statements if isinstance(unit, Region) else (unit,)


class Uses:
    """Readers of every value of a program, as it is when this is made."""

    def __init__(self, program: Program) -> None:
        self._readers: dict[str, dict[str, Statement]] = {}
        for statement in program.statements:
            for view in operands(statement, program):
                self._readers.setdefault(view.base, {})[statement.name] = statement
        self.returned = {_base(name, program) for name in program.graph.results}
        self.in_python = self.returned | {
            _base(name, program)
            for statement in program.statements
            if isinstance(statement, Library)
            for name in statement.node.inputs
        }

    def readers(self, name: str) -> list[Statement]:
        """Return the statements that read a value, in the program's order."""
        return list(self._readers.get(name, {}).values())


def stored(region: Region, program: Program, uses: Uses) -> list[str]:
    """Names of the values of a region that are read outside it, by other units or by torch."""
    left = region.recurrence.results if region.recurrence is not None else program.placed
    inside = {s.name for s in region.statements}
    return [
        name
        for name in (s.name for s in region.statements)
        if name in left or name in uses.in_python or any(r.name not in inside for r in uses.readers(name))
    ]


def ordered(needs: Mapping[int, set[int]]) -> list[int]:
    """Return the keys of `needs`, each behind those that it needs, and otherwise the smallest first."""
    waiting = {key: set(others) for key, others in needs.items()}
    followers: dict[int, list[int]] = {}
    for key, others in needs.items():
        for other in others:
            followers.setdefault(other, []).append(key)
    ready = [key for key, others in waiting.items() if not others]
    heapify(ready)
    found: list[int] = []
    while ready:
        found.append(heappop(ready))
        for follower in followers.get(found[-1], ()):
            waiting[follower].discard(found[-1])
            if not waiting[follower]:
                heappush(ready, follower)
    assert len(found) == len(needs)
    return found


def _base(name: str, program: Program) -> str:
    view = program.views.get(name)
    return view.base if isinstance(view, View) else name
