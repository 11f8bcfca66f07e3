"""Repetition: cheap values of which each element is read again and again are computed where they are read.

With codes of [512, 64, 32] in int8 and exponents of [512, 64] in uint8, each of 32 codes, the task

    return codes * 2.0 ** (exponents.int() - 127).unsqueeze(-1)

is lowered to four statements over two iteration spaces, 512 × 64 and 512 × 64 × 32:

    %_to_copy = convert(%exponents[512, 64], dtype=int32) : int32[512, 64]
    %sub = sub(%_to_copy[512, 64], 127) : int32[512, 64]
    %pow_1 = exp2_of_integer(%sub[512, 64, 1]) : float32[512, 64, 1]
    %mul = mul(%codes[512, 64, 32], %pow_1[512×64, 64×1, 32×0]) : float32[512, 64, 32]

The first three are a few additions for what is read 32 times. At the shape of %mul they share its kernel, and
nothing is stored in between; a loop over the 32 elements need not compute them more than once:

    %_to_copy_repeated = convert(%exponents[512×64, 64×1, 32×0], dtype=int32) : int32[512, 64, 32]
    %sub_repeated = sub(%_to_copy_repeated[512, 64, 32], 127) : int32[512, 64, 32]
    %pow_1_repeated = exp2_of_integer(%sub_repeated[512, 64, 32]) : float32[512, 64, 32]
    %mul = mul(%codes[512, 64, 32], %pow_1_repeated[512, 64, 32]) : float32[512, 64, 32]
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from kernelwright.agent.builtin.ir.ops import POINTWISE
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Library,
    Operand,
    Program,
    Recurrence,
    Statement,
    View,
    composed,
    contiguous,
    vectorisable,
)
from kernelwright.agent.builtin.ir.uses import Uses

# Both chosen by hand.
_MOST_COST = 6  # additions for each element that is read, all that a reader computes again taken together
_LEAST_READS = 8  # reads of each element, from which on a value counts as one that is read again and again


def repeated(program: Program) -> Program:
    """Compute cheap values at each of their reads, where these repeat them along the innermost axis."""
    program = program.copy()
    uses, stays = Uses(program), {*program.placed, *_of_rows(program)}
    now = {s.name: s for s in program.statements}
    before: dict[str, list[str]] = {}  # what is computed again, right before its reader
    spent: dict[str, int] = {}  # on what readers compute again, and what only serves that
    for name in [s.name for s in reversed(program.statements)]:
        statement = now[name]
        if not isinstance(statement, Compute) or name in uses.in_python or name in stays:
            continue
        cost = POINTWISE[statement.op].cost
        readers = [own for s in uses.readers(name) for own in before.get(s.name, [s.name])]
        found = _read_again(statement, [now[reader] for reader in readers])
        if found is None or any(spent.get(reader, 0) + cost > _MOST_COST for reader in readers):
            continue
        made = []
        for reader, parts in zip(readers, found, strict=True):
            other = now[reader]
            assert isinstance(other, Compute)
            names: dict[Operand, View] = {}
            for view, computed in parts.items():
                own = program.fresh(f"{name}_repeated")
                program.define(own, view.shape, statement.dtype)
                names[view] = View(own, view.shape, contiguous(view.shape))
                now[own] = replace(computed, name=own)
                spent[own] = spent.get(reader, 0) + cost
                made.append(own)
            now[reader] = replace(other, operands=tuple(names.get(o, o) for o in other.operands))
        before[name] = made
    program.statements = [now[own] for s in program.statements for own in before.get(s.name, [s.name])]
    return program


def _of_rows(program: Program) -> set[str]:
    """Return the values that come of reductions, whose kernel has a place for them: once in each row."""
    found: set[str] = set()
    for statement in program.statements:
        if isinstance(statement, Compute):
            if any(isinstance(o, View) and o.base in found for o in statement.operands):
                found.add(statement.name)
        elif not isinstance(statement, Library):
            found |= {statement.name, *(statement.results if isinstance(statement, Recurrence) else ())}
    return found


def _read_again(statement: Compute, readers: Sequence[Statement]) -> list[dict[View, Compute]] | None:
    """Return what each reader is to compute, for each of its views; None where one reads in another way."""
    found = []
    for reader in readers:
        if not isinstance(reader, Compute) or statement.by_place:
            return None
        mine: dict[View, Compute] = {}
        for view in reader.operands:
            if not isinstance(view, View) or view.base != statement.name or view in mine:
                continue
            computed = _at(statement, view) if _repeats(view, math.prod(statement.shape)) else None
            if computed is None:
                return None
            mine[view] = computed
        found.append(mine)
    return found or None


def _repeats(view: View, elements: int) -> bool:
    strides = [stride for size, stride in zip(view.shape, view.strides, strict=True) if size > 1]
    return view.numel >= _LEAST_READS * elements and bool(strides) and not strides[-1] and not view.table


def _at(statement: Compute, view: View) -> Compute | None:
    """Return the statement that computes all elements of a view, each as often as it is there."""
    operands: list[Operand] = []
    for operand in statement.operands:
        read = composed(view, statement.shape, operand) if isinstance(operand, View) else operand
        if read is None or (isinstance(read, View) and (read.clips or not vectorisable(read))):
            return None
        operands.append(read)
    return replace(statement, operands=tuple(operands), shape=view.shape)
