"""Short rows: where a row has few elements, SIMD lanes hold neighbouring rows, not the elements of one.

x.sum(-1) with x of [1024, 64, 3] has 65,536 rows of 3 elements, of which a vector loop along the row would
fill 3 of 16 lanes:

    %sum_1 = reduce sum(%x[1024, 64, 3], axes [2]) : float32[1024, 64]

Read with its last two axes exchanged, which is another view of the same memory, the reduced axis is no longer
the innermost one. The scheduler then makes columns of it (`scheduling/loop_nest.py`):

    %sum_1 = reduce sum(%x[1024, 3×1, 64×3], axes [1]) : float32[1024, 64]
    0: 65536 columns of 3, neighbours side by side: reads %x, writes %sum_1

Each lane adds up a row of its own. Neighbouring lanes read 3 floats apart, near enough to share cache lines.
"""

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

_LANES = 16  # rows that lie next to each other, at least: the floats of an AVX-512 vector


def short_rows(program: Program) -> Program:
    """Move the last axes of reductions over a few elements before the axis of their rows.

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
    """Return True if a reader of the same value reduces the same rows, or reads only a part of it."""
    if isinstance(statement, Compute):
        return all(v.numel < turned.operand.numel for v in statement.operands if isinstance(v, View))
    return isinstance(statement, Reduce) and _turned(statement) is not None
