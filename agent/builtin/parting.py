"""Inputs that are read in many parts, which lie together: a tensor for each, and one kernel for all."""

from dataclasses import replace

from agent.builtin.program import (
    Compute,
    Operand,
    Program,
    Reduce,
    Scan,
    View,
    contiguous,
    reading,
    slots,
    views_of,
)

_LEAST = 4  # parts; to make a tensor of one costs as much as a small kernel's call


def part(program: Program) -> None:
    """Have statements read parts of inputs by names of their own."""
    inputs = {item.name for item in program.graph.inputs}
    names: dict[View, str] = {}
    for name, view in program.views.items():
        if isinstance(view, View) and view.base in inputs and name in program.view_nodes and _together(view):
            names.setdefault(view, name)
    read = {
        view for s in program.statements if isinstance(s, Compute | Reduce | Scan) for view in views_of(s)
    }
    counts: dict[str, int] = {}
    for view in read & names.keys():
        counts[view.base] = counts.get(view.base, 0) + 1
    own = {view: name for view, name in names.items() if counts.get(view.base, 0) >= _LEAST and view in read}
    for view, name in own.items():
        program.shapes[name], program.dtypes[name] = view.shape, program.dtypes[view.base]

    def other(operand: Operand) -> Operand:
        if isinstance(operand, View) and operand in own:
            return View(own[operand], operand.shape, contiguous(operand.shape))
        return operand

    program.statements = [
        reading(s, [other(o) for o in slots(s)]) if isinstance(s, Compute | Reduce | Scan) else s
        for s in program.statements
    ]


def _together(view: View) -> bool:
    return bool(view.offset) and replace(view, offset=0).linear
