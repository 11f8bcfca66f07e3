"""The state of a lowering and what all its parts need: operands, settings, library calls, computations."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from kernelwright.agent.builtin.ir.expression import Call, Const, Expression, walk
from kernelwright.agent.builtin.ir.graph import Arg, Graph, Meta, Node, Ref
from kernelwright.agent.builtin.ir.ops import FLOATS, POINTWISE, SUPPORTED_DTYPES, Settings, promoted
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Constant,
    Library,
    Operand,
    Program,
    Reduce,
    View,
    broadcast,
    contiguous,
    contiguous_axis,
    turned,
    vectorisable,
)
from kernelwright.agent.builtin.ir.text import SMALL_FLOATS
from kernelwright.agent.builtin.schedule import Schedule

COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
INTEGER_FUNCTIONS = {"at_least", "at_most", "maximum", "minimum", "sign", "abs", "where", "bitwise_not"}
INTEGER_FUNCTIONS |= {"unranked", "unranked_down", "place_of"}


def compared(operands: Sequence[Any]) -> str:
    """Dtype that tensors and numbers are converted to; numbers, and tensors of no axes, count for less."""
    like = [
        torch.empty((1,) * len(o.shape), dtype=getattr(torch, o.dtype), device="meta")
        if isinstance(o, Meta)
        else o
        for o in operands
    ]
    return str(torch.result_type(*like)).removeprefix("torch.")


class Lowering:
    """Lowering of a graph to a program, operator by operator.

    With the layout `channels_last`, what is computed from a value lies in memory as the value does, in its
    order of axes. Else everything is computed in the order of its own axes.
    """

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self.graph = graph
        self.schedule = schedule
        self.layout = schedule.value("layout")
        self.program = Program(graph)
        self.seen: dict[tuple[Any, ...], str] = {}
        self.tuples: dict[str, Node] = {}
        self.mutated = {m.value for m in graph.mutations}
        self.taken = {i.name for i in graph.inputs} | {n.name for n in graph.nodes}

    def choice(self, knob: str) -> str:
        """Return the value of a knob that makes a difference here."""
        self.program.choices[knob] = self.schedule.value(knob)
        return self.program.choices[knob]

    def fresh(self, name: str) -> str:
        """`name`, or a longer one where the graph has it already."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def alias_of(self, name: str) -> object:
        """Key of what a name reads, so that two names of one value share work."""
        view = self.program.views.get(name)
        if isinstance(view, Constant):
            return repr(view)  # 1 and 1.0 are two things, and so are 0.0 and -0.0
        return view if view is not None else name

    def operand(self, arg: Arg) -> Operand | None:
        if isinstance(arg, Ref):
            return self.readable(arg.ref)
        if isinstance(arg, bool | int | float):
            return Constant(arg)
        return None

    def operand_as_it_lies(self, arg: Arg) -> Operand | None:
        """Return an operand that may be in another order of axes."""
        view = self.program.views.get(arg.ref) if isinstance(arg, Ref) else None
        return view if self.order(view) is not None else self.operand(arg)

    # Orders of axes.

    def order(self, view: Operand | None) -> tuple[int, ...] | None:
        """Return a view's axes as they lie in memory, the innermost last; None where they have that order."""
        if self.layout != "channels_last" or not isinstance(view, View) or view.clips or vectorisable(view):
            return None
        axes = tuple(sorted(range(len(view.shape)), key=lambda axis: -view.strides[axis]))
        return axes if vectorisable(turned(view, axes)) else None

    def in_order_of(self, operands: tuple[Operand, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the order of axes of the operands that have this shape."""
        whole = (self.order(o) for o in operands if isinstance(o, View) and o.shape == shape)
        return next((order for order in whole if order is not None), None)

    def define_turned(self, name: str, base: str, order: tuple[int, ...]) -> None:
        """`name` is `base`, whose axes are those of `name` in this order."""
        back = tuple(order.index(axis) for axis in range(len(order)))
        shape = self.program.shapes[base]
        self.program.views[name] = turned(View(base, shape, contiguous(shape)), back)
        meta = Meta(
            shape=tuple(shape[axis] for axis in back),
            dtype=self.program.dtypes[base],
            strides=turned(View(base, shape, contiguous(shape)), back).strides,
        )
        self.program.view_nodes[name] = Node(
            name=name, op="aten.permute.default", args=(Ref(ref=base), back), kwargs={}, outputs=(meta,)
        )

    def copied(self, name: str, order: tuple[int, ...]) -> str:
        """Name of a copy of a value in this order of axes; one copy serves all."""
        view = self.view_of(name)
        key = ("copied", view, order)
        if key not in self.seen:
            across = turned(view, order)
            there, copy = self.fresh(f"{name}_turned"), self.fresh(f"{name}_channels_last")
            self.program.views[there] = across
            meta = Meta(
                shape=across.shape, dtype=self.program.dtypes[view.base], strides=contiguous(across.shape)
            )
            self.program.view_nodes[there] = Node(
                name=there, op="aten.permute.default", args=(Ref(ref=name), order), kwargs={}, outputs=(meta,)
            )
            self.copy(copy, across, there)
            self.seen[key] = self.fresh(f"{name}_copied")
            self.define_turned(self.seen[key], copy, order)
        return self.seen[key]

    def constant(self, value: Any, dtype: str) -> Constant:
        if dtype == "bool":
            return Constant(bool(value))
        return Constant(float(value) if dtype in FLOATS else int(value))

    def settings(self, node: Node) -> Settings:
        """Arguments by the names of the schema."""
        _, name, overload = node.op.split(".")
        schema = getattr(getattr(torch.ops.aten, name), overload)._schema
        names = [argument.name for argument in schema.arguments]
        found: Settings = dict(zip(names, node.args, strict=False))
        found.update(node.kwargs)
        return found

    def library(self, node: Node) -> None:
        if len(node.outputs) > 1:
            self.tuples[node.name] = node
            self.program.statements.append(Library(node.name, node))
        else:
            self.program.add(Library(node.name, node), node.meta.shape, node.meta.dtype)

    def compute(
        self,
        name: str,
        op: str,
        operands: tuple[Operand, ...],
        settings: Settings,
        shape: tuple[int, ...],
        dtype: str,
    ) -> bool:
        if all(isinstance(o, Constant) for o in operands):
            return False
        dtypes = [self.program.dtype_of(o) for o in operands if isinstance(o, View)]
        if not set(dtypes) <= SUPPORTED_DTYPES:
            return False
        compute_dtype = promoted(dtypes) if POINTWISE[op].computes == "operands" else dtype
        if op in COMPARISONS:
            compute_dtype = self.compared(operands)
            if compute_dtype in SMALL_FLOATS:
                if not set(dtypes) <= {compute_dtype, "bool", "uint8", "int8"}:
                    return False  # it would have to be rounded first
                operands = tuple(self.rounded(o, compute_dtype) for o in operands)
        if compute_dtype in SMALL_FLOATS:
            compute_dtype = "float32"
        if compute_dtype not in FLOATS and not _is_of_integers(POINTWISE[op].tree(settings)):
            return False
        if op == "exp" and self.below_maximum(operands[0]):
            op = "exp_nonpositive"
        views = tuple(broadcast(o, shape) if isinstance(o, View) else o for o in operands)
        order = self.in_order_of(operands, shape)
        if order is not None:
            across = tuple(turned(v, order) if isinstance(v, View) else v for v in views)
            if not all(vectorisable(v) for v in across if isinstance(v, View)):
                return False
            base, size = self.fresh(f"{name}_channels_last"), tuple(shape[axis] for axis in order)
            self.program.add(Compute(base, op, across, settings, size, dtype, compute_dtype), size, dtype)
            self.define_turned(name, base, order)
            return True
        if not all(vectorisable(v) for v in views if isinstance(v, View)):
            return False
        self.program.add(Compute(name, op, views, settings, shape, dtype, compute_dtype), shape, dtype)
        return True

    def compared(self, operands: Sequence[Operand]) -> str:
        """Dtype that operands of a comparison are converted to."""
        dtypes = self.program.dtypes
        return compared(
            [
                Meta(shape=o.shape, dtype=dtypes[o.base], strides=o.strides)
                if isinstance(o, View)
                else o.value
                for o in operands
            ]
        )

    def rounded(self, operand: Operand, dtype: str) -> Operand:
        """Return a constant as the nearest number of a type."""
        if isinstance(operand, View):
            return operand
        return Constant(torch.tensor(operand.value, dtype=getattr(torch, dtype)).item())

    def below_maximum(self, operand: Operand) -> bool:
        """Return True if the operand is x - max(x), along some axis."""
        statements = {s.name: s for s in self.program.statements}
        difference = statements.get(operand.base) if isinstance(operand, View) else None
        if not isinstance(difference, Compute) or difference.op != "sub" or difference.settings:
            return False
        left, right = difference.operands
        maximum = statements.get(right.base) if isinstance(right, View) else None
        if not isinstance(maximum, Reduce) or maximum.op != "amax" or maximum.operand != left:
            return False
        assert isinstance(left, View) and isinstance(right, View)
        rows = tuple(1 if d in maximum.dims else size for d, size in enumerate(left.shape))
        along = zip(left.shape, contiguous(rows), strict=True)
        wanted = [0 if d in maximum.dims else step for d, (_, step) in enumerate(along)]
        pairs = zip(left.shape, right.strides, wanted, strict=True)
        return all(size == 1 or stride == step for size, stride, step in pairs)

    def readable(self, name: str) -> Operand | None:
        """Operand that a name reads; where that jumps through memory, a contiguous copy of it."""
        operand = self.program.views.get(name)
        if not isinstance(operand, View) or vectorisable(operand):
            return operand
        return self.view_of(self.copied_as_it_reads(name, operand))

    def copied_as_it_reads(self, name: str, view: View) -> str:
        """Name of a copy of a value in the order of its own axes; one copy serves all."""
        key = ("contiguous", view)
        if key not in self.seen:
            self.seen[key] = self.fresh(f"{view.base}_contiguous")
            self.copy(self.seen[key], view, name)
        return self.seen[key]

    def copy(self, name: str, view: View, original: str) -> None:
        """Add a copy of a view, which is that of `original`."""
        dtype = self.program.dtypes[view.base]
        flipped = vectorisable(view) and min(view.strides, default=0) < 0
        if (flipped or contiguous_axis(view) is not None) and dtype in SUPPORTED_DTYPES:
            compute_dtype = "float32" if dtype in SMALL_FLOATS else dtype
            copied = Compute(name, "copy", (view,), {}, view.shape, dtype, compute_dtype)
            self.program.add(copied, view.shape, dtype)
            return
        meta = Meta(shape=view.shape, dtype=dtype, strides=contiguous(view.shape))
        args = (Ref(ref=original),)
        node = Node(name=name, op="aten.contiguous.default", args=args, kwargs={}, outputs=(meta,))
        self.program.add(Library(name, node), meta.shape, meta.dtype)

    def view_of(self, name: str) -> View:
        view = self.program.views[name]
        assert isinstance(view, View)
        return view


def _is_of_integers(tree: Expression) -> bool:
    """Return True if an expression can be computed in integers."""
    calls = {node.function for node in walk(tree) if isinstance(node, Call)}
    infinite = any(isinstance(node, Const) and math.isinf(node.value) for node in walk(tree))
    return calls <= INTEGER_FUNCTIONS and not infinite


def reshaped(view: View, shape: tuple[int, ...]) -> View:
    assert view.linear and math.prod(shape) == view.numel
    return View(view.base, shape, contiguous(shape))
