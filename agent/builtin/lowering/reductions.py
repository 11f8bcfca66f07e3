"""Lowering of reductions, and of what is built from them: variance, extremes with their place, gather."""

import math
from typing import Any

from kernelwright.agent.builtin.ir.graph import Node, Ref
from kernelwright.agent.builtin.ir.ops import ORDERED, SUPPORTED_DTYPES, Settings
from kernelwright.agent.builtin.ir.program import Constant, Reduce, Scan, View, turned
from kernelwright.agent.builtin.lowering.base import Lowering, reshaped

_LANES = 16  # columns, or elements of a row, that a scan needs at least: an AVX-512 vector of floats


class ReductionLowering(Lowering):
    def reduce(self, name: str, op: str, source: View, dims: Any, keepdim: bool, dtype: str) -> None:
        """Add the reduction of a source in whatever order its axes lie."""
        rank = len(source.shape)
        axes = {int(d) % rank for d in dims} if dims else set(range(rank))
        order = self.order(source) or tuple(range(rank))
        across = turned(source, order)
        left = [d for d in order if keepdim or d not in axes]
        shape = tuple(1 if d in axes else source.shape[d] for d in left)
        places = tuple(place for place, d in enumerate(order) if d in axes)
        if left == sorted(left):
            self.program.add(Reduce(name, op, across, places, shape, dtype), shape, dtype)
            return
        base = self.fresh(f"{name}_channels_last")
        self.program.add(Reduce(base, op, across, places, shape, dtype), shape, dtype)
        self.define_turned(name, base, tuple(sorted(left).index(d) for d in left))

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
        source = self.reducible(settings, as_it_lies=True)
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

    def reducible(self, settings: Settings, as_it_lies: bool = False) -> View | None:
        """Operand of a reduction; only `reduce` and `compute` can handle its axes in another order."""
        find = self.operand_as_it_lies if as_it_lies else self.operand
        source = find(settings["self"])  # type: ignore[arg-type]
        if not isinstance(source, View) or self.program.dtypes[source.base] not in SUPPORTED_DTYPES:
            return None
        return source if source.numel > 1 else None

    def size(self, source: View, dims: Any) -> int:
        return math.prod(source.shape[d] for d in dims) if dims else source.numel

    def on_var_mean(self, node: Node) -> bool:
        settings = self.settings(node)
        source = self.reducible(settings, as_it_lies=bool(settings.get("keepdim", False)))
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
        row_sum, row_mean, centered, square, squares, variance = (
            self.fresh(f"{part}{number}")
            for part in ("row_sum", "row_mean", "centered", "square", "squares", "variance")
        )
        self.reduce(row_sum, "sum", source, dims, True, dtype)
        kept = self.view_of(row_sum).shape
        self.compute(row_mean, "div", (self.view_of(row_sum), Constant(count)), {}, kept, dtype)
        mean = self.view_of(row_mean)
        self.compute(centered, "sub", (source, mean), {}, source.shape, dtype)
        self.seen[("aten.sub.Tensor", (source, mean), (), ((source.shape, dtype),))] = centered
        self.compute(square, "mul", (self.view_of(centered), self.view_of(centered)), {}, source.shape, dtype)
        self.reduce(squares, "sum", self.view_of(square), dims, True, dtype)
        self.program.roles[self.view_of(squares).base] = "variance"
        self.compute(variance, "div", (self.view_of(squares), Constant(divisor)), {}, kept, dtype)
        if not keepdim:
            for part in (variance, row_mean):
                self.program.views[part] = reshaped(self.view_of(part), node.meta.shape)
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
        if self.size(source, (dim,)) in (1, source.numel):  # of all elements only the extreme itself is found
            return False
        keepdim = bool(settings.get("keepdim", False))
        values, indices = f"{node.name}_values", f"{node.name}_indices"
        self.position(indices, op, source, dim, keepdim)
        self.program.views[values] = self.view_of(f"{indices}_extreme")
        if not keepdim:
            self.program.views[values] = reshaped(self.view_of(f"{indices}_extreme"), node.meta.shape)
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
        if source is None or dim is None or self.size(source, (dim,)) in (1, source.numel):
            return False
        if self.program.dtypes[source.base] not in ORDERED:
            return False
        self.position(node.name, op, source, dim, bool(settings.get("keepdim", False)))
        return True

    def position(self, name: str, op: str, source: View, dim: Any, keepdim: bool) -> None:
        """Find the first index of the extreme value along `dim`; a NaN counts as the extreme."""
        dtype = self.program.dtypes[source.base]
        extreme, hit, first = f"{name}_extreme", f"{name}_hit", f"{name}_first"
        self.reduce(extreme, op, source, (dim,), True, dtype)
        self.compute(hit, "position", (source, self.view_of(extreme)), {}, source.shape, "int32")
        self.reduce(first, "first", self.view_of(hit), (dim,), keepdim, "int32")
        self.compute(name, "convert", (self.view_of(first),), {}, self.program.shapes[first], "int64")

    def on_cumsum(self, node: Node) -> bool:
        return self.running(node, "sum")

    def on_cumprod(self, node: Node) -> bool:
        return self.running(node, "prod")

    def running(self, node: Node, op: str) -> bool:
        settings, dtype = self.settings(node), node.meta.dtype
        source, dim = self.reducible(settings), settings["dim"]
        if source is None or not isinstance(dim, int) or dtype not in ("float32", "float64", "int64"):
            return False
        dim %= len(source.shape)
        columns = math.prod(source.shape[dim + 1 :])
        if max(columns, source.shape[dim] if columns == 1 else 0) < _LANES or source.shape[dim] == 1:
            return False
        if self.program.dtypes[source.base] != dtype:
            return False
        self.program.add(Scan(node.name, op, source, (dim,), node.meta.shape, dtype), node.meta.shape, dtype)
        return True

    def on_gather(self, node: Node) -> bool:
        settings = self.settings(node)
        source, index = self.reducible(settings), self.operand(settings["index"])  # type: ignore[arg-type]
        dim = settings["dim"]
        if source is None or not isinstance(index, View) or not isinstance(dim, int):
            return False
        dim %= len(source.shape)
        expected = tuple(1 if d == dim else size for d, size in enumerate(source.shape))
        if node.meta.shape != expected or source.shape[dim] in (1, source.numel):
            return False
        if math.prod(source.shape[dim + 1 :]) > 1:  # what is picked from is a row
            return False
        self.program.add(
            Reduce(node.name, "pick", source, (dim,), node.meta.shape, node.meta.dtype, index),
            node.meta.shape,
            node.meta.dtype,
        )
        return True
