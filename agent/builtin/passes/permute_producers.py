"""Permuted producers: what is computed only to be copied in another order of axes is computed in that order.

exp(x).transpose(1, 2).contiguous() with x of [8, 64, 128] is lowered to a computation and a copy, of which
the latter reads with strides of 128:

    %exp = exp(%x[8, 64, 128]) : float32[8, 64, 128]
    %exp_contiguous = copy(%exp[8, 128×1, 64×128]) : float32[8, 128, 64]

Nothing else reads %exp, and permuting the axes of an operand changes only its view. So the exponentials are
computed in the copy's order, in tiles that are transposed in the cache, and %exp never exists:

    %exp_contiguous = exp(%x[8, 128×1, 64×128]) : float32[8, 128, 64]
    0: 65536 elements in tiles, whose axes change places: reads %x, writes %exp_contiguous
"""

import math
from dataclasses import replace

from kernelwright.agent.builtin.ir.program import (
    Compute,
    Program,
    Statement,
    View,
    contiguous,
    contiguous_axis,
    of_view,
    vectorisable,
)
from kernelwright.agent.builtin.ir.space import analyse
from kernelwright.agent.builtin.ir.uses import Uses


def permute_producers(program: Program) -> Program:
    """Compute in the order of its reader what only one reads, in another order."""
    program = program.copy()
    uses = Uses(program)
    number = len(program.statements) - 1
    while number >= 0:
        statement = program.statements[number]
        if isinstance(statement, Compute) and _turn_producer(program, uses, number, statement):
            uses, number = Uses(program), len(program.statements)
        number -= 1
    return program


def _is_turned(operand: object) -> bool:
    return isinstance(operand, View) and contiguous_axis(operand) is not None


def _turn_producer(program: Program, uses: Uses, number: int, statement: Compute) -> bool:
    """Move the producer of an operand to the statement, in its order of axes; return True if one was."""
    for view in statement.operands:
        if not isinstance(view, View) or not _is_turned(view):
            continue
        producer = next((s for s in program.statements if s.name == view.base), None)
        if not isinstance(producer, Compute) or view.numel != math.prod(producer.shape):
            continue
        if uses.readers(view.base) != [statement] or view.base in uses.in_python:
            continue
        turned = _in_order_of(view, producer)
        if turned is None or sum(v == view for v in statement.operands) > 1:
            continue
        found: list[Statement] = [replace(turned, name=statement.name)]
        if statement.op != "copy":
            name = program.fresh(f"{producer.name}_turned")
            program.define(name, view.shape, producer.dtype)
            made = View(name, view.shape, contiguous(view.shape))
            read = tuple(made if o == view else o for o in statement.operands)
            found = [replace(turned, name=name), replace(statement, operands=read)]
        program.statements[number : number + 1] = found
        program.statements.remove(producer)
        return True
    return False


def _in_order_of(view: View, producer: Compute) -> Compute | None:
    """Return a statement that computes a view of a value; None where its operands would be far apart."""
    computed = of_view(producer, view)
    if computed is None or analyse([computed]) is None:
        return None
    near = all(vectorisable(o) or _is_turned(o) for o in computed.operands if isinstance(o, View))
    return computed if near else None
