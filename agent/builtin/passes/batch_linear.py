"""Batching of linear layers: independent products with the same matrix become one (inputs of all steps).

With x of [64, 4, 128] and a layer of 128 to 128, the task

    h = x[:, 0] * 0
    for t in range(4):
        h = torch.tanh(self.l(x[:, t]) + h)
    return h

calls the layer for each step, though only what follows it needs the step before:

    %linear = torch: aten.linear(%select_1, %p_l_weight, %p_l_bias) : float32[64, 128]
    %add = add(%linear[64, 128], %mul[64, 128]) : float32[64, 128]

The four inputs are the slices of %x, in order, so %x is the input of one product, and its parts are views:

    %linear_each = torch: aten.linear(%x, %p_l_weight, %p_l_bias) : float32[64, 4, 128]
    %add = add(%linear_each[64×512, 128], %mul[64, 128]) : float32[64, 128]
    %add_1 = add(%linear_each[64×512, 128] +128, %tanh[64, 128]) : float32[64, 128]

Inputs that are no slices of one value are copied next to each other first. Here what remains is one kernel.
"""

import math
from collections.abc import Sequence

from kernelwright.agent.builtin.ir.graph import Meta, Node, Ref
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Joined,
    Library,
    Operand,
    Program,
    Recurrence,
    Statement,
    View,
    composed,
    contiguous,
    reading,
    slots,
)
from kernelwright.agent.builtin.ir.text import ITEMSIZE, SMALL_FLOATS
from kernelwright.agent.builtin.ir.uses import operands, ordered

# All chosen by hand.
_LEAST = 4  # products from which they are made one
_MOST_ROWS = 256  # rows of one product; with more it is as fast alone
_MOST_BYTES = 64 << 20  # bytes of all results together


def batch_linear(program: Program) -> Program:
    """Replace linear layers that are applied again and again by one call on all their inputs."""
    program = program.copy()
    groups: dict[tuple[object, ...], list[Library]] = {}
    for statement in program.statements:
        if isinstance(statement, Library) and statement.node.op == "aten.linear.default":
            view = program.views.get(statement.node.inputs[0])
            if isinstance(view, View) and len(view.shape) == 2 and not statement.order:
                groups.setdefault((view.shape, *statement.node.args[1:]), []).append(statement)
    for group in groups.values():
        if len(group) >= _LEAST and _pays(group[0], len(group), program) and _apart(group, program):
            _together(group, program)
    return program


def _pays(one: Library, count: int, program: Program) -> bool:
    shape, dtype = program.shapes[one.name], program.dtypes[one.name]
    return shape[0] <= _MOST_ROWS and count * math.prod(shape) * ITEMSIZE[dtype] <= _MOST_BYTES


def _apart(group: Sequence[Library], program: Program) -> bool:
    """Return True if no product needs another's result, and all readers can read part of a value."""
    made = {statement.name for statement in group}
    for name in program.graph.results:
        view = program.views.get(name)
        if isinstance(view, View) and view.base in made:
            return False
    after = set(made)
    for statement in program.statements:
        read = {view.base for view in operands(statement, program)}
        if statement.name in made and read & after:
            return False
        if read & after:
            after.add(statement.name)
        if read & made and isinstance(statement, Recurrence | Joined):
            return False
    return True


def _input(statement: Library, program: Program) -> View:
    view = program.views[statement.node.inputs[0]]
    assert isinstance(view, View)
    return view


def _together(group: Sequence[Library], program: Program) -> None:
    first = group[0]
    inputs = [_input(statement, program) for statement in group]
    source, axis = _sliced(inputs, program)
    rows, length = program.shapes[first.name]
    shape = (rows, len(group), length) if axis else (len(group), rows, length)
    name = program.fresh(f"{first.name}_each")
    slices = {
        s.name: View(name, (rows, length), (contiguous(shape)[1 - axis], 1), number * contiguous(shape)[axis])
        for number, s in enumerate(group)
    }
    changed = [_reading(s, slices, program) for s in program.statements if s.name not in slices]
    named = {n: v for n, v in program.views.items() if isinstance(v, View) and v.base in slices}
    views = {n: composed(v, (rows, length), slices[v.base]) for n, v in named.items()}
    if not all(changed) or None in views.values():
        return
    found = [s for s in changed if s is not None]
    if not source:
        source = program.fresh(f"{name}_inputs")
        found += _gathered(source, inputs, program)
    dtype = program.dtypes[first.name]
    meta = Meta(shape=shape, dtype=dtype, strides=contiguous(shape))
    node = first.node.model_copy(
        update={"name": name, "args": (Ref(ref=source), *first.node.args[1:]), "outputs": (meta,)}
    )
    program.define(name, shape, dtype)
    program.views.update((n, v) for n, v in views.items() if v is not None)
    program.statements = _ordered([*found, Library(name, node)], program)
    for number, (part, view) in enumerate(slices.items()):
        outputs = (Meta(shape=view.shape, dtype=dtype, strides=view.strides),)
        select = Node(
            name=part, op="aten.select.int", args=(Ref(ref=name), axis, number), kwargs={}, outputs=outputs
        )
        program.view_nodes[part] = select


def _sliced(inputs: Sequence[View], program: Program) -> tuple[str, int]:
    """Return the value whose slices along its first or second axis are the inputs, in order, or none."""
    base, (rows, length) = inputs[0].base, inputs[0].shape
    for axis, shape in enumerate(((len(inputs), rows, length), (rows, len(inputs), length))):
        strides = contiguous(shape)
        wanted = (
            View(base, (rows, length), (strides[1 - axis], 1), n * strides[axis]) for n in range(len(inputs))
        )
        if program.shapes[base] == shape and list(inputs) == list(wanted):
            return base, axis
    return "", 0


def _gathered(name: str, inputs: Sequence[View], program: Program) -> list[Statement]:
    """Copy of the inputs into a new value, one after the other."""
    dtype, size = program.dtypes[inputs[0].base], inputs[0].shape
    compute_dtype = "float32" if dtype in SMALL_FLOATS else dtype
    pieces: dict[str, View] = {}
    copies: list[Statement] = []
    for number, view in enumerate(inputs):
        piece = program.fresh(f"{name}_{number}")
        program.define(piece, size, dtype)
        copies.append(Compute(piece, "copy", (view,), {}, size, dtype, compute_dtype))
        pieces[piece] = View(name, size, contiguous(size), number * math.prod(size))
    program.define(name, (len(inputs), *size), dtype)
    return [*copies, Joined(name, pieces)]


def _reading(statement: Statement, slices: dict[str, View], program: Program) -> Statement | None:
    """Statement that reads the slices instead; None where no strides describe what it reads."""
    if isinstance(statement, Library | Recurrence | Joined):
        return statement
    read: list[Operand] = []
    for operand in slots(statement):
        if isinstance(operand, View) and operand.base in slices:
            part = composed(operand, program.shapes[operand.base], slices[operand.base])
            if part is None:
                return None
            read.append(part)
        else:
            read.append(operand)
    return reading(statement, read)


def _ordered(statements: Sequence[Statement], program: Program) -> list[Statement]:
    """Statements in an order in which they can run, near the one that they have."""
    place: dict[str, int] = {}
    for number, statement in enumerate(statements):
        place[statement.name] = number
        if isinstance(statement, Recurrence):
            place.update({view.base: number for view in statement.results.values()})
    turn: set[int] = set()  # the last one that must be carried out in its turn
    waits: dict[int, set[int]] = {}
    for number, statement in enumerate(statements):
        waits[number] = {place[v.base] for v in operands(statement, program) if v.base in place} - {number}
        if isinstance(statement, Library) and statement.node.in_turn:
            waits[number] |= turn
            turn = {number}
    return [statements[number] for number in ordered(waits)]
