"""Work that appears twice, done once: statements that compute the same from the same values."""

from collections.abc import Hashable
from dataclasses import replace

from kernelwright.agent.builtin.ir.program import (
    Attention,
    Compute,
    Fused,
    Operand,
    Program,
    Recurrence,
    Reduce,
    Scan,
    Statement,
    View,
    reading,
    slots,
)


def cse(program: Program) -> Program:
    """Redirect readers of a value that was computed before to the first computation of it."""
    first: dict[Hashable, str] = {}
    instead: dict[str, str] = {}
    placed = program.placed
    found: list[Statement] = []

    def other(operand: Operand) -> Operand:
        if isinstance(operand, View) and operand.base in instead:
            return replace(operand, base=instead[operand.base])
        return operand

    for statement in program.statements:
        if isinstance(statement, Recurrence):
            body = tuple(reading(s, [other(o) for o in slots(s)]) for s in statement.body)
            statement = replace(statement, body=body)
        elif isinstance(statement, Compute | Reduce | Scan | Attention):
            statement = reading(statement, [other(o) for o in slots(statement)])
            if statement.name not in placed:
                name = first.setdefault(_meaning(statement), statement.name)
                if name != statement.name:
                    instead[statement.name] = name
                    continue
        found.append(statement)
    views = {name: other(operand) for name, operand in program.views.items()}
    return replace(program, statements=found, views=views)


def _meaning(statement: Fused | Attention) -> Hashable:
    """All but the name, and the axes of one element that a result has."""
    if isinstance(statement, Compute):
        settings = tuple(sorted((k, repr(v)) for k, v in statement.settings.items()))
        operands = tuple(repr(o) for o in statement.operands)  # 1 and 1.0 are two, and 0.0 and -0.0
        return statement.op, operands, settings, statement.shape, statement.dtype, statement.compute_dtype
    if isinstance(statement, Attention):
        return replace(statement, name="")
    index = statement.index if isinstance(statement, Reduce) else None
    return type(statement), statement.op, statement.operand, statement.dims, statement.dtype, index
