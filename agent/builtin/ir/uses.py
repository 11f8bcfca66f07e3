"""Uses of values: operands of statements, readers of values, and values that live on between kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from kernelwright.agent.builtin.ir.program import Attention, Library, Program, Statement, View, views_of
from kernelwright.agent.builtin.ir.space import Region

Unit: TypeAlias = Region | Attention | Library


def operands(statement: Statement, program: Program) -> list[View]:
    """The views a statement reads."""
    if not isinstance(statement, Library):
        return list(views_of(statement))
    found = []
    for name in statement.node.inputs:
        view = program.views.get(name)
        found.append(view if isinstance(view, View) else View(name, (), ()))
    return found


def statements_of(unit: Unit) -> Sequence[Statement]:
    """The statements of a kernel, or the one library call or attention."""
    return unit.statements if isinstance(unit, Region) else (unit,)


def needed_in_python(program: Program) -> set[str]:
    """Bases that torch calls, results and buffer updates read."""
    names = list(program.graph.results)
    for statement in program.statements:
        if isinstance(statement, Library):
            names += statement.node.inputs
    found: set[str] = set()
    for name in names:
        view = program.views.get(name)
        found.add(view.base if isinstance(view, View) else name)
    return found


def readers_of(units: Sequence[Unit], program: Program) -> dict[str, set[int]]:
    """Map each value to the units that read it."""
    readers: dict[str, set[int]] = {}
    for index, unit in enumerate(units):
        for s in statements_of(unit):
            for view in operands(s, program):
                readers.setdefault(view.base, set()).add(index)
    return readers


def stored(
    region: Region, index: int, program: Program, readers: Mapping[str, set[int]], python: set[str]
) -> list[str]:
    """Names of the values of unit `index` that other units read, or torch does (`needed_in_python`)."""
    left = region.recurrence.results if region.recurrence is not None else program.placed
    return [
        s.name
        for s in region.statements
        if s.name in left or s.name in python or readers.get(s.name, set()) - {index}
    ]
