"""Splitting: values that are read in parts are computed in parts, each where it is read (gates of an LSTM).

With x of [64, 512], the task

    a, b = torch.sigmoid(x).chunk(2, 1)
    return a * b

is lowered to a value of [64, 512] whose halves are read at the same place of two views:

    %sigmoid = sigmoid(%x[64, 512]) : float32[64, 512]
    %mul = mul(%sigmoid[64×512, 256], %sigmoid[64×512, 256] +256) : float32[64, 256]

No iteration space has both, 64 × 512 and 64 × 256. Both halves together are the whole, so nothing is computed
twice if each becomes a value of its own, and all three statements are one kernel over 64 × 256:

    %sigmoid_part = sigmoid(%x[64×512, 256]) : float32[64, 256]
    %sigmoid_part_ = sigmoid(%x[64×512, 256] +256) : float32[64, 256]
    %mul = mul(%sigmoid_part[64, 256], %sigmoid_part_[64, 256]) : float32[64, 256]
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from kernelwright.agent.builtin.ir.program import (
    Compute,
    Operand,
    Program,
    Reduce,
    Scan,
    Statement,
    View,
    contiguous,
    of_view,
    reading,
    slots,
    vectorisable,
    views_of,
)
from kernelwright.agent.builtin.ir.uses import Uses


def split_values(program: Program) -> Program:
    """Compute the parts of a pointwise result that are read, as values of their own."""
    program = program.copy()
    uses, placed = Uses(program), program.placed
    now = {s.name: s for s in program.statements}
    made: dict[str, list[str]] = {}
    for name in [s.name for s in reversed(program.statements)]:
        statement = now[name]
        if not isinstance(statement, Compute) or name in uses.in_python or name in placed:
            continue
        readers = [own for s in uses.readers(name) for own in made.get(s.name, [s.name])]
        parts = _parts(statement, [now[reader] for reader in readers])
        if parts is None:
            continue
        names: dict[Operand, View] = {}
        for view, computed in parts.items():
            own = program.fresh(f"{name}_part")
            program.define(own, view.shape, statement.dtype)
            names[view] = View(own, view.shape, contiguous(view.shape))
            now[own] = replace(computed, name=own)
        made[name] = [view.base for view in names.values()]
        for reader in readers:
            other = now[reader]
            assert isinstance(other, Compute | Reduce | Scan)
            now[reader] = reading(other, [names.get(o, o) for o in slots(other)])
    program.statements = [now[own] for s in program.statements for own in made.get(s.name, [s.name])]
    return program


def _parts(statement: Compute, readers: Sequence[Statement]) -> dict[View, Compute] | None:
    """Statement for each part that is read; None where one reads all, or together they are more than that."""
    fused = [s for s in readers if isinstance(s, Compute | Reduce | Scan)]
    if not fused or len(fused) < len(readers):
        return None
    found: dict[View, Compute] = {}
    size = math.prod(statement.shape)
    for view in dict.fromkeys(v for s in fused for v in views_of(s) if v.base == statement.name):
        computed = of_view(statement, view) if view.numel < size else None
        if computed is None or not all(vectorisable(o) for o in computed.operands if isinstance(o, View)):
            return None
        found[view] = computed
    return found if sum(view.numel for view in found) <= size else None
