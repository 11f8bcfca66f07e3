"""What is computed in one order of axes only to be copied into another is computed in that other order."""

import math
from dataclasses import replace

from agent.builtin.fusion import operands
from agent.builtin.host import needed_in_python
from agent.builtin.program import (
    Compute,
    Operand,
    Program,
    Statement,
    View,
    composed,
    contiguous,
    contiguous_axis,
    vectorisable,
)
from agent.builtin.space import analyse


def turn_before_copies(program: Program) -> None:
    """Compute in the order of its reader what only one reads, in another order."""
    number = len(program.statements) - 1
    while number >= 0:
        statement = program.statements[number]
        if isinstance(statement, Compute) and _turn_producer(program, number, statement):
            number = len(program.statements)
        number -= 1


def _is_turned(operand: object) -> bool:
    return isinstance(operand, View) and contiguous_axis(operand) is not None


def _turn_producer(program: Program, number: int, statement: Compute) -> bool:
    """Whether what computes one of the operands could be put before the statement, in its order of axes."""
    for view in statement.operands:
        if not isinstance(view, View) or not _is_turned(view):
            continue
        producer = next((s for s in program.statements if s.name == view.base), None)
        if not isinstance(producer, Compute) or view.numel != math.prod(producer.shape):
            continue
        if any(not stride for size, stride in zip(view.shape, view.strides, strict=True) if size > 1):
            continue
        readers = [s for s in program.statements if any(v.base == view.base for v in operands(s, program))]
        if readers != [statement] or view.base in needed_in_python(program):
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
    """What computes a view of the producer's value; None where it would read what lies too far apart."""
    found: list[Operand] = []
    for operand in producer.operands:
        if isinstance(operand, View):
            part = composed(view, producer.shape, operand)
            if part is None or not (vectorisable(part) or _is_turned(part)):
                return None
            found.append(part)
        else:
            found.append(operand)
    turned = replace(producer, operands=tuple(found), shape=view.shape)
    return turned if analyse([turned]) is not None else None
