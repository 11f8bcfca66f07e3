"""From a `Graph` of ATen calls to a `Program`: views resolved, constants folded, repeated work shared."""

import math
import re
from collections.abc import Callable
from typing import Any

import torch

from agent.builtin.graph import Arg, DType, Graph, Node, Ref
from agent.builtin.ops import POINTWISE, Settings, pointwise_name, promoted
from agent.builtin.program import (
    Compute,
    Constant,
    Library,
    Operand,
    Program,
    Reduce,
    View,
    broadcast,
    contiguous,
)

SUPPORTED_DTYPES = {"float32", "float64", "int64", "int32", "bool", "uint8", "bfloat16", "float16"}
ORDERED = {"float32", "float64", "int64", "int32", "bfloat16", "float16"}
FLOATS = {"float32", "float64", "bfloat16", "float16"}
INTEGER_FUNCTIONS = {"at_least", "at_most", "maximum", "minimum", "sign", "lowest", "highest", "bitwise_not"}

NEAR = 4  # stride, in elements, up to which reading every n-th element beats making a copy

_VIEWS = """
view _unsafe_view reshape unsqueeze squeeze expand permute transpose t alias detach slice select unfold
diagonal flatten
"""
VIEW_OPS = frozenset(_VIEWS.split())
SAME_OPS = {"clone", "alias", "detach", "lift_fresh_copy", "contiguous", "dropout"}
FILLS: dict[str, Callable[[Settings], Any]] = {
    "full": lambda s: s["fill_value"],
    "full_like": lambda s: s["fill_value"],
    "scalar_tensor": lambda s: s["s"],
    "zeros": lambda s: 0.0,
    "zeros_like": lambda s: 0.0,
    "ones": lambda s: 1.0,
    "ones_like": lambda s: 1.0,
}


def lower(graph: Graph) -> Program:
    """The program of a graph. Everything the tables do not list becomes a `Library` statement."""
    return _Lowering(graph).run()


class _Lowering:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.program = Program(graph)
        self.seen: dict[tuple[Any, ...], str] = {}
        self.tuples: dict[str, Node] = {}
        self.mutated = {m.value for m in graph.mutations}

    def run(self) -> Program:
        for item in self.graph.inputs:
            self.program.define(item.name, item.meta.shape, item.meta.dtype)
            if item.kind == "literal" and len(item.values) == 1:
                self.program.views[item.name] = self.constant(item.values[0], item.meta.dtype)
        for node in self.graph.nodes:
            self.node(node)
        return self.program

    def node(self, node: Node) -> None:
        key = (node.op, _frozen(node.args, self.alias_of), _frozen(node.kwargs, self.alias_of))
        twin = self.seen.setdefault(key, node.name)
        if twin != node.name and node.op != "getitem":
            if twin in self.program.views:
                self.program.views[node.name] = self.program.views[twin]
                self.program.view_nodes[node.name] = _same(node, twin)
                return
            if twin in self.tuples:
                self.tuples[node.name] = self.tuples[twin]
                return
        short = node.op.split(".")[1] if "." in node.op else node.op
        handler = getattr(self, f"on_{short}", None)
        if len(node.outputs) == 1 and node.meta.numel == 0:
            self.library(node)
        elif handler is not None and handler(node):
            return
        elif short in SAME_OPS or short in VIEW_OPS:
            self.view(node, short)
        elif short in FILLS:
            settings = self.settings(node)
            self.program.views[node.name] = self.constant(FILLS[short](settings), node.meta.dtype)
            self.program.view_nodes[node.name] = node
        elif not self.pointwise(node):
            self.library(node)

    # Names and arguments.

    def alias_of(self, name: str) -> object:
        """What a name reads, so that two ways of naming one value share work."""
        view = self.program.views.get(name)
        return view if view is not None else name

    def operand(self, arg: Arg) -> Operand | None:
        if isinstance(arg, Ref):
            return self.program.views.get(arg.ref)
        if isinstance(arg, bool | int | float):
            return Constant(arg)
        return None

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

    # Kinds of node.

    def library(self, node: Node) -> None:
        if len(node.outputs) > 1:
            self.tuples[node.name] = node
            self.program.statements.append(Library(node.name, node))
        else:
            self.program.add(Library(node.name, node), node.meta.shape, node.meta.dtype)

    def view(self, node: Node, short: str) -> None:
        source = self.operand(node.args[0])
        if source is None or isinstance(source, Constant):
            if isinstance(source, Constant) and short not in ("slice", "select"):
                self.program.views[node.name] = source
                self.program.view_nodes[node.name] = node
                return
            self.library(node)
            return
        if short in SAME_OPS:
            self.program.views[node.name] = source
            self.program.view_nodes[node.name] = node
            return
        storage = torch.empty(max(math.prod(self.program.shapes[source.base]), 1), device="meta")
        strided = storage.as_strided(source.shape, source.strides, source.offset)
        _, name, overload = node.op.split(".")
        try:
            result = getattr(getattr(torch.ops.aten, name), overload)(strided, *map(_plain, node.args[1:]))
        except RuntimeError:  # a view of elements that no stride can describe: torch copies
            self.library(node)
            return
        view = View(source.base, tuple(result.shape), tuple(result.stride()), result.storage_offset())
        self.program.views[node.name] = view
        self.program.view_nodes[node.name] = node

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
        operands: list[Operand] = []
        for argument in entry.arguments[: entry.operands]:
            value = settings.get(argument)
            operand = self.operand(value)  # type: ignore[arg-type]
            if operand is None:
                return False
            operands.append(operand)
        rest = {k: v for k, v in settings.items() if k not in entry.arguments[: entry.operands]}
        if any(isinstance(v, Ref) for v in rest.values()):
            return False
        return self.compute(node.name, name, tuple(operands), rest, node.meta.shape, node.meta.dtype)

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
        compute_dtype = dtype
        if POINTWISE[op].computes == "operands":
            compute_dtype = promoted(dtypes)
            if any(isinstance(o, Constant) and isinstance(o.value, float) for o in operands):
                compute_dtype = (
                    promoted([compute_dtype, "bfloat16"]) if compute_dtype in FLOATS else "float32"
                )
        if compute_dtype in ("bfloat16", "float16"):
            compute_dtype = "float32"
        template = POINTWISE[op].template(settings)
        called = set(re.findall(r"(\w+)_\{t\}", template))
        if compute_dtype not in FLOATS and called - INTEGER_FUNCTIONS:
            return False
        if op == "exp" and self.below_maximum(operands[0]):
            op = "exp_nonpositive"
        views = tuple(broadcast(o, shape) if isinstance(o, View) else o for o in operands)
        if not all(_vectorisable(v) for v in views if isinstance(v, View)):
            return False
        self.program.add(Compute(name, op, views, settings, shape, dtype, compute_dtype), shape, dtype)
        return True

    def below_maximum(self, operand: Operand) -> bool:
        """Whether the operand is x - max(x), along some axis."""
        statements = {s.name: s for s in self.program.statements}
        difference = statements.get(operand.base) if isinstance(operand, View) else None
        if not isinstance(difference, Compute) or difference.op != "sub" or difference.settings:
            return False
        left, right = difference.operands
        maximum = statements.get(right.base) if isinstance(right, View) else None
        return isinstance(maximum, Reduce) and maximum.op == "amax" and maximum.operand == left

    # Reductions.

    def reduce(self, name: str, op: str, source: View, dims: Any, keepdim: bool, dtype: str) -> None:
        """Adds the reduction, or a view of the source where every reduced size is 1."""
        rank = len(source.shape)
        axes = tuple(sorted({int(d) % rank for d in dims})) if dims else tuple(range(rank))
        shape = tuple(
            1 if d in axes else size for d, size in enumerate(source.shape) if keepdim or d not in axes
        )
        self.program.add(Reduce(name, op, source, axes, shape, dtype), shape, dtype)

    def on_sum(self, node: Node) -> bool:
        return self.plain(node, "sum")

    def on_amax(self, node: Node) -> bool:
        return self.plain(node, "amax")

    def on_amin(self, node: Node) -> bool:
        return self.plain(node, "amin")

    def on_prod(self, node: Node) -> bool:
        return self.plain(node, "prod")

    def on_any(self, node: Node) -> bool:
        return self.plain(node, "any")

    def on_all(self, node: Node) -> bool:
        return self.plain(node, "all")

    def plain(self, node: Node, op: str) -> bool:
        settings = self.settings(node)
        source = self.reducible(settings)
        if source is None or node.meta.dtype not in SUPPORTED_DTYPES:
            return False
        dims = settings.get("dim")
        if isinstance(dims, int):
            dims = (dims,)
        if self.size(source, dims) == 1:
            return False
        dtype = self.program.dtypes[source.base]
        if (op in ("any", "all")) != (dtype == "bool") and op != "sum":
            return False
        if op in ("amax", "amin") and dtype not in ORDERED:
            return False
        self.reduce(node.name, op, source, dims, bool(settings.get("keepdim", False)), node.meta.dtype)
        return True

    def reducible(self, settings: Settings) -> View | None:
        source = self.operand(settings["self"])  # type: ignore[arg-type]
        if not isinstance(source, View) or self.program.dtypes[source.base] not in SUPPORTED_DTYPES:
            return None
        return source if source.numel > 1 and _vectorisable(source) else None

    def size(self, source: View, dims: Any) -> int:
        return math.prod(source.shape[d] for d in dims) if dims else source.numel

    def on_var_mean(self, node: Node) -> bool:
        settings = self.settings(node)
        source = self.reducible(settings)
        dtype = node.meta.dtype
        if source is None or dtype not in ("float32", "float64"):
            return False
        dims, keepdim = settings.get("dim") or (), bool(settings.get("keepdim", False))
        count = self.size(source, dims)
        correction = settings.get("correction")
        assert correction is None or isinstance(correction, int | float)
        divisor = count - (1 if correction is None else correction)
        if count == 1 or divisor <= 0:
            return False
        number = node.name.removeprefix("var_mean")
        parts = [
            f"{part}{number}" for part in ("row_sum", "row_mean", "centered", "square", "squares", "variance")
        ]
        row_sum, row_mean, centered, square, squares, variance = parts
        self.reduce(row_sum, "sum", source, dims, True, dtype)
        kept = self.program.shapes[row_sum]
        self.compute(row_mean, "div", (self.view_of(row_sum), Constant(count)), {}, kept, dtype)
        mean = self.view_of(row_mean)
        self.compute(centered, "sub", (source, mean), {}, source.shape, dtype)
        self.seen[("aten.sub.Tensor", (source, mean), ())] = centered
        self.compute(square, "mul", (self.view_of(centered), self.view_of(centered)), {}, source.shape, dtype)
        self.reduce(squares, "sum", self.view_of(square), dims, True, dtype)
        self.compute(variance, "div", (self.view_of(squares), Constant(divisor)), {}, kept, dtype)
        if not keepdim:
            for part in (variance, row_mean):
                self.program.views[part] = _reshaped(self.view_of(part), node.meta.shape)
        both = (Ref(ref=variance), Ref(ref=row_mean))
        self.tuples[node.name] = Node(name=node.name, op="tuple", args=both, kwargs={}, outputs=())
        return True

    def on_max(self, node: Node) -> bool:
        return self.extreme(node, "amax")

    def on_min(self, node: Node) -> bool:
        return self.extreme(node, "amin")

    def extreme(self, node: Node, op: str) -> bool:
        settings = self.settings(node)
        source = self.reducible(settings)
        if source is None or node.op.split(".")[2] not in ("dim", "default"):
            return False
        if self.program.dtypes[source.base] not in ORDERED:
            return False
        dim = settings.get("dim")
        if dim is None:
            self.reduce(node.name, op, source, (), False, node.meta.dtype)
            return True
        if self.size(source, (dim,)) == 1:
            return False
        keepdim = bool(settings.get("keepdim", False))
        values, indices = f"{node.name}_values", f"{node.name}_indices"
        self.position(indices, op, source, dim, keepdim)
        self.program.views[values] = self.view_of(f"{indices}_extreme")
        if not keepdim:
            self.program.views[values] = _reshaped(self.view_of(f"{indices}_extreme"), node.meta.shape)
        self.tuples[node.name] = Node(
            name=node.name, op="tuple", args=(Ref(ref=values), Ref(ref=indices)), kwargs={}, outputs=()
        )
        return True

    def on_argmax(self, node: Node) -> bool:
        return self.argument(node, "amax")

    def on_argmin(self, node: Node) -> bool:
        return self.argument(node, "amin")

    def argument(self, node: Node, op: str) -> bool:
        settings = self.settings(node)
        source = self.reducible(settings)
        dim = settings.get("dim")
        if source is None or dim is None or self.size(source, (dim,)) == 1:
            return False
        if self.program.dtypes[source.base] not in ORDERED:
            return False
        self.position(node.name, op, source, dim, bool(settings.get("keepdim", False)))
        return True

    def position(self, name: str, op: str, source: View, dim: Any, keepdim: bool) -> None:
        """The first index of the extreme value along `dim`; a NaN counts as the extreme."""
        dtype = self.program.dtypes[source.base]
        extreme, hit, first = f"{name}_extreme", f"{name}_hit", f"{name}_first"
        self.reduce(extreme, op, source, (dim,), True, dtype)
        self.compute(hit, "position", (source, self.view_of(extreme)), {}, source.shape, "int32")
        self.reduce(first, "first", self.view_of(hit), (dim,), keepdim, "int32")
        self.compute(name, "convert", (self.view_of(first),), {}, self.program.shapes[first], "int64")

    def on_gather(self, node: Node) -> bool:
        settings = self.settings(node)
        source, index = self.reducible(settings), self.operand(settings["index"])  # type: ignore[arg-type]
        dim = settings["dim"]
        if source is None or not isinstance(index, View) or not isinstance(dim, int):
            return False
        dim %= len(source.shape)
        expected = tuple(1 if d == dim else size for d, size in enumerate(source.shape))
        if node.meta.shape != expected or source.shape[dim] == 1:
            return False
        self.program.add(
            Reduce(node.name, "pick", source, (dim,), node.meta.shape, node.meta.dtype, index),
            node.meta.shape,
            node.meta.dtype,
        )
        return True

    def on_dropout(self, node: Node) -> bool:
        settings = self.settings(node)
        if settings["p"] == 0.0 or not settings["train"]:
            self.view(node, "dropout")
            return True
        return False

    def on_split(self, node: Node) -> bool:
        return self.pieces(node)

    def on_split_with_sizes(self, node: Node) -> bool:
        return self.pieces(node)

    def pieces(self, node: Node) -> bool:
        """A split as one slice for each piece."""
        settings = self.settings(node)
        source, dim = node.args[0], settings.get("dim", 0)
        if not isinstance(source, Ref) or not isinstance(dim, int):
            return False
        start, items = 0, []
        for index, meta in enumerate(node.outputs):
            end = start + meta.shape[dim]
            name = f"{node.name}_{index}"
            args = (source, dim, start, end)
            piece = Node(name=name, op="aten.slice.Tensor", args=args, kwargs={}, outputs=(meta,))
            self.view(piece, "slice")
            items.append(Ref(ref=name))
            start = end
        self.tuples[node.name] = Node(name=node.name, op="tuple", args=tuple(items), kwargs={}, outputs=())
        return True

    def on_getitem(self, node: Node) -> bool:
        source, index = node.args
        assert isinstance(source, Ref) and isinstance(index, int)
        parent = self.tuples[source.ref]
        if parent.op == "tuple":
            item = parent.args[index]
            assert isinstance(item, Ref)
            self.program.views[node.name] = self.program.views[item.ref]
            self.program.view_nodes[node.name] = _same(node, item.ref)
        else:
            fixed = node.model_copy(update={"args": (Ref(ref=parent.name), index)})
            self.program.add(Library(node.name, fixed), node.meta.shape, node.meta.dtype)
        return True

    def view_of(self, name: str) -> View:
        view = self.program.views[name]
        assert isinstance(view, View)
        return view


def _vectorisable(view: View) -> bool:
    """Whether neighbours along the last axis are near each other in memory, or the same element."""
    strides = [stride for size, stride in zip(view.shape, view.strides, strict=True) if size > 1]
    return not strides or strides[-1] <= NEAR


def _reshaped(view: View, shape: tuple[int, ...]) -> View:
    assert view.linear and math.prod(shape) == view.numel
    return View(view.base, shape, contiguous(shape))


def _same(node: Node, other: str) -> Node:
    """`node` as another name of `other`."""
    return Node(
        name=node.name, op="aten.alias.default", args=(Ref(ref=other),), kwargs={}, outputs=node.outputs
    )


def _plain(arg: Arg) -> Any:
    if isinstance(arg, tuple):
        return [_plain(item) for item in arg]
    return arg


def _frozen(value: Any, alias_of: Callable[[str], object]) -> Any:
    """A hashable form of arguments; names become what they read."""
    if isinstance(value, Ref):
        return alias_of(value.ref)
    if isinstance(value, DType):
        return value.dtype
    if isinstance(value, dict):
        return tuple((k, _frozen(v, alias_of)) for k, v in sorted(value.items()))
    if isinstance(value, tuple):
        return tuple(_frozen(v, alias_of) for v in value)
    return (type(value).__name__, repr(value))  # 0.0 and -0.0 are two things
