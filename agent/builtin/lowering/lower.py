"""Lowering of a `Graph` of ATen calls to a `Program`: views resolved, constants folded, calls shared."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import torch

from kernelwright.agent.builtin.ir.graph import ROW_BLOCKS, SUBMODULE, Arg, DType, Graph, Node, Ref
from kernelwright.agent.builtin.ir.ops import POINTWISE, SUPPORTED_DTYPES, Settings, pointwise_name
from kernelwright.agent.builtin.ir.program import (
    Constant,
    Library,
    Operand,
    Program,
    Statement,
    View,
    broadcast,
    turned,
    vectorisable,
)
from kernelwright.agent.builtin.ir.text import ITEMSIZE
from kernelwright.agent.builtin.lowering.attention import AttentionLowering
from kernelwright.agent.builtin.lowering.base import COMPARISONS, compared
from kernelwright.agent.builtin.lowering.default_layout import is_convolution
from kernelwright.agent.builtin.lowering.gathers import LookupLowering
from kernelwright.agent.builtin.lowering.layout import LayoutLowering
from kernelwright.agent.builtin.lowering.matmuls import ProductLowering
from kernelwright.agent.builtin.lowering.pooling import WindowLowering
from kernelwright.agent.builtin.lowering.simplify import unchanged
from kernelwright.agent.builtin.lowering.topk import RankLowering
from kernelwright.agent.builtin.lowering.views import SAME_OPS, VIEW_OPS, ViewLowering, same
from kernelwright.agent.builtin.schedule import DEFAULT, Schedule

FILLS: dict[str, Callable[[Settings], Any]] = {
    "full": lambda s: s["fill_value"],
    "full_like": lambda s: s["fill_value"],
    "scalar_tensor": lambda s: s["s"],
    "zeros": lambda s: 0.0,
    "zeros_like": lambda s: 0.0,
    "ones": lambda s: 1.0,
    "ones_like": lambda s: 1.0,
}


def lower(graph: Graph, schedule: Schedule = DEFAULT, choices: Sequence[str] = ()) -> Program:
    """Lower a graph to a program. Everything the tables do not list becomes a `Library` statement.

    `choices`: knobs that have made a difference to the graph.
    """
    lowering = _NodeLowering(graph, schedule)
    for knob in choices:
        lowering.choice(knob)
    return lowering.run()


class _NodeLowering(
    ViewLowering,
    WindowLowering,
    ProductLowering,
    LookupLowering,
    RankLowering,
    AttentionLowering,
    LayoutLowering,
):
    """One method `on_<operator>` for each operator that is neither pointwise nor a view."""

    def run(self) -> Program:
        for item in self.graph.inputs:
            self.program.define(item.name, item.meta.shape, item.meta.dtype)
            if item.kind == "literal" and len(item.values) == 1:
                self.program.views[item.name] = self.constant(item.values[0], item.meta.dtype)
        for node in self.graph.nodes:
            self.node(node)
        self.turn_results()
        return self.program

    def turn_results(self) -> None:
        """Make results lie in memory as the reference's do."""
        metas = self.graph.metas()
        for name in self.graph.outputs:
            view = self.program.views.get(name)
            if not isinstance(view, View) or not metas[name].contiguous:
                continue
            if not replace(view, offset=0).linear:
                lying = self.fresh(f"{name}_lying")
                self.program.views[lying] = view
                self.program.view_nodes[lying] = self.program.view_nodes[name]
                self.program.views[name] = self.view_of(self.copied_as_it_reads(lying, view))

    def node(self, node: Node) -> None:
        if node.op in (SUBMODULE, ROW_BLOCKS):
            self.tuples[node.name] = node
            self.program.statements.append(Library(node.name, node))
            return
        made = tuple((meta.shape, meta.dtype) for meta in node.outputs)
        key = (node.op, _frozen(node.args, self.alias_of), _frozen(node.kwargs, self.alias_of), made)
        twin = self.seen.setdefault(key, node.name)
        if twin != node.name and node.op != "getitem" and not node.in_turn:
            if twin in self.program.views:
                self.program.views[node.name] = self.program.views[twin]
                self.program.view_nodes[node.name] = same(node, twin)
                return
            if twin in self.tuples:
                self.tuples[node.name] = self.tuples[twin]
                return
        short = node.operator
        handler = getattr(self, f"on_{short}", None)
        if is_convolution(node):
            self.choice("layout")
        if len(node.outputs) == 1 and node.meta.numel == 0:
            self.library(node)
        elif handler is not None and handler(node):
            return
        elif short in SAME_OPS or short in VIEW_OPS:
            self.view(node, short)
        elif short in FILLS:
            self.fill(node, self.constant(FILLS[short](self.settings(node)), node.meta.dtype))
        elif not self.pointwise(node):
            self.library(node)

    def pointwise(self, node: Node) -> bool:
        name = pointwise_name(node.op)
        if name is None or len(node.outputs) != 1 or node.meta.dtype not in SUPPORTED_DTYPES:
            return False
        entry = POINTWISE[name]
        settings = self.settings(node)
        if set(settings) - set(entry.arguments) - {"dtype", "memory_format", "non_blocking"}:
            return False
        if node.name in self.mutated and node.meta.numel == 1:
            return False  # a counter
        if name in ("lshift", "rshift") and settings["other"] not in range(8 * ITEMSIZE[node.meta.dtype]):
            return False  # C++ leaves open what that is
        names = entry.arguments[: entry.operands]
        given: list[Arg] = [settings.get(name) for name in names]  # type: ignore[misc]
        operands = self.in_one_order(given, node.meta.shape) or [self.operand(a) for a in given]
        read = tuple(o for o in operands if o is not None)
        if len(read) < len(given):
            return False
        if all(isinstance(o, Constant) for o in read):
            return self.fold(node)
        if name in COMPARISONS and any(isinstance(o, Constant) for o in read):
            metas = self.graph.metas()
            if compared([metas[a.ref] if isinstance(a, Ref) else a for a in given]) != self.compared(read):
                return False  # a tensor of one number counts for more than the number
        rest = {k: v for k, v in settings.items() if k not in entry.arguments[: entry.operands]}
        if any(isinstance(v, Ref) for v in rest.values()):
            return False
        same = unchanged(name, read, rest, self.maker)
        if isinstance(same, View) and self.is_made_here(same, node):
            self.program.views[node.name], self.program.view_nodes[node.name] = same, node
            return True
        return self.compute(node.name, name, read, rest, node.meta.shape, node.meta.dtype)

    def on_ldexp(self, node: Node) -> bool:
        settings = self.settings(node)
        x, exponent = (self.operand(settings[each]) for each in ("self", "other"))  # type: ignore[arg-type]
        if x is None or not self.is_exponent(exponent) or node.meta.dtype != "float32":
            return False
        return self.compute(node.name, "ldexp", (x, exponent), {}, node.meta.shape, node.meta.dtype)

    def on_pow(self, node: Node) -> bool:
        if node.op != "aten.pow.Scalar" or node.meta.dtype != "float32":
            return False
        settings = self.settings(node)
        exponent = self.operand(settings["exponent"])  # type: ignore[arg-type]
        return settings["self"] == 2 and self.power_of_two(node.name, exponent)

    def on_exp2(self, node: Node) -> bool:
        if node.meta.dtype != "float32":
            return False
        return self.power_of_two(node.name, self.operand(self.settings(node)["self"]))  # type: ignore[arg-type]

    def power_of_two(self, name: str, exponent: Operand | None) -> bool:
        """Compute a power of two in float32, if the exponent is an integer of at most 32 bits."""
        if not self.is_exponent(exponent):
            return False
        return self.compute(name, "exp2_of_integer", (exponent,), {}, exponent.shape, "float32")

    def is_exponent(self, operand: Operand | None) -> TypeGuard[View]:
        """Return True if an operand is a tensor of integers of at most 32 bits."""
        dtypes = ("int32", "int16", "int8", "uint8")
        return isinstance(operand, View) and self.program.dtypes[operand.base] in dtypes

    def is_made_here(self, view: View, node: Node) -> bool:
        """Return True if a value may stand for a node's: the caller gets no tensor that it has already."""
        alike = view.shape == node.meta.shape and self.program.dtypes[view.base] == node.meta.dtype
        apart = not view.clips and node.name not in self.graph.results
        return alike and apart and self.maker(view.base) is not None

    def maker(self, name: str) -> Statement | None:
        return next((s for s in reversed(self.program.statements) if s.name == name), None)

    def fold(self, node: Node) -> bool:
        """Compute an operator of constants, once and for all."""
        metas = self.graph.metas()

        def given(arg: Arg) -> Any:
            if isinstance(arg, DType):
                return getattr(torch, arg.dtype)
            if not isinstance(arg, Ref):
                return arg
            constant, meta = self.program.views[arg.ref], metas[arg.ref]
            assert isinstance(constant, Constant)
            return torch.full((1,) * len(meta.shape), constant.value, dtype=getattr(torch, meta.dtype))

        _, short, overload = node.op.split(".")
        operator = getattr(getattr(torch.ops.aten, short), overload)
        value = operator(*map(given, node.args), **{key: given(arg) for key, arg in node.kwargs.items()})
        self.fill(node, self.constant(value.item(), node.meta.dtype))
        return True

    def fill(self, node: Node, value: Constant) -> None:
        """Define a tensor of one number, which is allocated only where torch asks for it."""
        args, dtype = (node.meta.shape, value.value), {"dtype": DType(dtype=node.meta.dtype)}
        full = node.model_copy(update={"op": "aten.full.default", "args": args, "kwargs": dtype})
        self.program.views[node.name], self.program.view_nodes[node.name] = value, full

    def in_one_order(self, given: Sequence[Arg], shape: tuple[int, ...]) -> list[Operand | None] | None:
        """Return the operands in another order of axes than their own, if one lies so in memory."""
        operands = [self.operand_as_it_lies(arg) for arg in given]
        order = self.in_order_of(tuple(o for o in operands if o is not None), shape)
        if order is None:
            return None
        for number, (arg, operand) in enumerate(zip(given, operands, strict=True)):
            if not isinstance(operand, View) or vectorisable(turned(broadcast(operand, shape), order)):
                continue
            if not isinstance(arg, Ref) or operand.shape != shape:
                return None
            operands[number] = self.view_of(self.copied(arg.ref, order))
        return operands


def _frozen(value: Any, alias_of: Callable[[str], object]) -> Any:
    """Return a hashable form of arguments; names become what they read."""
    if isinstance(value, Ref):
        return alias_of(value.ref)
    if isinstance(value, DType):
        return value.dtype
    if isinstance(value, dict):
        return tuple((k, _frozen(v, alias_of)) for k, v in sorted(value.items()))
    if isinstance(value, tuple):
        return tuple(_frozen(v, alias_of) for v in value)
    return (type(value).__name__, repr(value))  # 0.0 and -0.0 are two things
