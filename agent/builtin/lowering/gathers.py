"""Lowering of lookups: embeddings, selections and gathers, which read a table where an index says.

The index is looked through before, by torch, so that a kernel need not ask whether there is such an element.
Where an index is computed such that all that it names exists, nothing is looked through, and one kernel
computes the index and reads the table.
"""

from dataclasses import replace

from kernelwright.agent.builtin.ir.graph import Meta, Node, Ref
from kernelwright.agent.builtin.ir.ops import SUPPORTED_DTYPES
from kernelwright.agent.builtin.ir.program import Compute, Library, View, contiguous, vectorisable
from kernelwright.agent.builtin.ir.text import SMALL_FLOATS
from kernelwright.agent.builtin.lowering.ranges import range_of
from kernelwright.agent.builtin.lowering.reductions import ReductionLowering


class LookupLowering(ReductionLowering):
    def on_embedding(self, node: Node) -> bool:
        settings = self.settings(node)
        return self.along(node, settings["weight"], 0, settings["indices"])

    def on_index_select(self, node: Node) -> bool:
        settings = self.settings(node)
        return self.along(node, settings["self"], settings["dim"], settings["index"])

    def on_index(self, node: Node) -> bool:
        settings = self.settings(node)
        places = settings["indices"]
        assert isinstance(places, tuple)
        given = [(axis, index) for axis, index in enumerate(places) if index is not None]
        return len(given) == 1 and self.along(node, settings["self"], *given[0], negative=True)

    def on_gather(self, node: Node) -> bool:
        """Along one axis; along the others the index is as far as the element."""
        if super().on_gather(node):
            return True
        settings = self.settings(node)
        source, dim = self.table(settings["self"]), settings["dim"]
        if source is None or not source.shape or not isinstance(dim, int):
            return False
        dim %= len(source.shape)
        index = self.indices(settings["index"], source.shape[dim], False)
        strides = tuple(0 if axis == dim else stride for axis, stride in enumerate(source.strides))
        found = replace(source, shape=node.meta.shape, strides=strides, table=source.strides[dim])
        return index is not None and self.take(node, found, index)

    def along(self, node: Node, table: object, dim: object, index: object, negative: bool = False) -> bool:
        """Return the axes of the index take the place of one of the table's."""
        source = self.table(table)
        if source is None or not source.shape or not isinstance(dim, int):
            return False
        dim %= len(source.shape)
        before, after = source.strides[:dim], source.strides[dim + 1 :]
        axes = len(node.meta.shape) - len(before) - len(after)
        counted = self.counted(index, source.shape[dim])
        if counted is not None and len(counted[1]) == axes:
            first, steps = counted
            strides = (*before, *(step * source.strides[dim] for step in steps), *after)
            offset = source.offset + first * source.strides[dim]
            self.program.views[node.name] = View(source.base, node.meta.shape, strides, offset)
            self.program.view_nodes[node.name] = node
            return True
        found = self.indices(index, source.shape[dim], negative)
        if found is None:
            return False
        along = found.strides if found.shape else (0,) * axes  # `index_select` takes a number, too
        strides = (*before, *(0,) * axes, *after)
        source = replace(source, shape=node.meta.shape, strides=strides, table=source.strides[dim])
        strides = (*(0,) * len(before), *along, *(0,) * len(after))
        return self.take(node, source, replace(found, shape=node.meta.shape, strides=strides))

    def counted(self, arg: object, size: int) -> tuple[int, tuple[int, ...]] | None:
        """Return the first of indices that `arange` counts, and the distance of the next along each axis.

        All of them exist, so that they are a part of the table and nothing need be looked up.
        """
        view = self.program.views.get(arg.ref) if isinstance(arg, Ref) else None
        node = next((n for n in self.graph.nodes if isinstance(view, View) and n.name == view.base), None)
        if not isinstance(view, View) or view.clips or node is None or not node.op.startswith("aten.arange."):
            return None
        settings = self.settings(node)
        start, step = settings.get("start", 0), settings.get("step", 1)
        if not isinstance(start, int) or not isinstance(step, int) or node.meta.dtype != "int64":
            return None
        first, steps = start + step * view.offset, tuple(step * stride for stride in view.strides)
        last = first + sum((n - 1) * each for n, each in zip(view.shape, steps, strict=True))
        if step < 0 or first < 0 or last >= size:
            return None
        self.program.view_nodes[node.name] = node  # for torch, should it ask for the part
        return first, steps

    def table(self, arg: object) -> View | None:
        view = self.program.views.get(arg.ref) if isinstance(arg, Ref) else None
        if not isinstance(view, View) or view.clips or self.program.dtypes[view.base] not in SUPPORTED_DTYPES:
            return None
        return view

    def indices(self, arg: object, size: int, negative: bool) -> View | None:
        """Return indices that are known to lie within `size`, or that a library call has checked against it.

        None if there are none.
        """
        meta = self.graph.metas().get(arg.ref) if isinstance(arg, Ref) else None
        if not isinstance(arg, Ref) or meta is None or meta.dtype not in ("int64", "int32"):
            return None
        known, view = range_of(self.program.views.get(arg.ref), self.program), self.readable(arg.ref)
        if known is not None and known[0] >= 0 and known[1] < size and isinstance(view, View):
            return view
        key = ("indices", self.alias_of(arg.ref), size, negative)
        if key not in self.seen:
            name = self.seen[key] = self.fresh(f"{arg.ref}_indices")
            there = Meta(shape=meta.shape, dtype=meta.dtype, strides=contiguous(meta.shape))
            args = (arg, size, True) if negative else (arg, size)
            node = Node(name=name, op="indices", args=args, kwargs={}, outputs=(there,))
            self.program.add(Library(name, node), there.shape, there.dtype)
        return self.view_of(self.seen[key])

    def take(self, node: Node, table: View, index: View) -> bool:
        shape, dtype = node.meta.shape, node.meta.dtype
        if not table.table or not vectorisable(index):
            return False
        if not vectorisable(table) and vectorisable(replace(index, strides=table.strides)):
            return False
        compute_dtype = "float32" if dtype in SMALL_FLOATS else dtype
        self.program.add(
            Compute(node.name, "take", (table, index), {}, shape, dtype, compute_dtype), shape, dtype
        )
        return True
