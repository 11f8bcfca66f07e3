"""Rows of a few elements: neighbouring rows side by side in the vector lanes, not the elements of one."""

import math
from dataclasses import replace

from kernelwright.agent.builtin.ir.program import (
    NEAR,
    Compute,
    Library,
    Program,
    Reduce,
    Statement,
    View,
    near,
)
from kernelwright.agent.builtin.ir.uses import Uses

_LANES = 16  # rows side by side, at least


def short_rows(program: Program) -> Program:
    """Have reductions over a few last elements read these as an axis before that of the rows.

    Only where nothing else reads the whole of what they reduce, which would be another kernel then.
    """
    uses, found = Uses(program), program.statements[:]
    computed = {s.name for s in program.statements if not isinstance(s, Library)}
    for number, statement in enumerate(program.statements):
        turned = _turned(statement) if isinstance(statement, Reduce) else None
        if turned is None or turned.operand.base in computed:
            continue
        others = (s for s in uses.readers(turned.operand.base) if not isinstance(s, Library))
        if all(_reads_rows(other, turned) for other in others):
            found[number] = turned
    return replace(program, statements=found)


def _turned(reduce: Reduce) -> Reduce | None:
    shape, strides = reduce.operand.shape, reduce.operand.strides
    first = reduce.dims[0]
    last = tuple(range(first, len(shape)))
    length = math.prod(shape[first:])
    is_short = reduce.dims == last and reduce.op not in ("pick", "first") and 1 < length <= NEAR
    if not is_short or first == 0 or shape[first - 1] < _LANES or not near(strides[first - 1]):
        return None
    order = (*range(first - 1), *last, first - 1)
    view = replace(
        reduce.operand,
        shape=tuple(shape[axis] for axis in order),
        strides=tuple(strides[axis] for axis in order),
    )
    return replace(reduce, operand=view, dims=tuple(axis - 1 for axis in reduce.dims))


def _reads_rows(statement: Statement, turned: Reduce) -> bool:
    """Whether a reader of the same value is a reduction of the same rows, or reads but a part of it."""
    if isinstance(statement, Compute):
        return all(v.numel < turned.operand.numel for v in statement.operands if isinstance(v, View))
    return isinstance(statement, Reduce) and _turned(statement) is not None
