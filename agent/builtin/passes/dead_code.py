"""Dead code elimination: statements that compute what nobody reads are left out."""

from dataclasses import replace

from kernelwright.agent.builtin.ir.program import Library, Program, Recurrence, Statement, View
from kernelwright.agent.builtin.ir.uses import operands


def dead_code(program: Program) -> Program:
    """Leave out what is computed for nobody."""
    views = (program.views.get(name) for name in program.graph.results)
    read = {view.base for view in views if isinstance(view, View)} | set(program.graph.results)
    kept: list[Statement] = []
    for statement in reversed(program.statements):
        made = {statement.name}
        if isinstance(statement, Recurrence):
            made = {view.base for view in statement.results.values()}
        if made & read or (isinstance(statement, Library) and statement.node.in_turn):
            kept.append(statement)
            read |= {view.base for view in operands(statement, program)}
    return replace(program, statements=kept[::-1])
