"""Lowering of `topk`: each of a few largest elements is the largest of those that rank below the last one.

An element's rank is one number, of its value and its place. No two are equal, so that a reduction to the
largest rank finds both. A NaN ranks above all, as in torch; of equal values, where torch promises no order,
the first one does.
"""

from kernelwright.agent.builtin.ir.graph import Node, Ref
from kernelwright.agent.builtin.ir.ops import Settings
from kernelwright.agent.builtin.ir.program import Constant, Joined, View, contiguous
from kernelwright.agent.builtin.lowering.reductions import ReductionLowering

_MOST = 8  # elements, for each of which there is a pass over the row
_RANKED = {"float32", "bfloat16", "float16"}  # whose value and place are 64 bits
_LOWEST = Constant(-(2**63) + 1)  # below all ranks


class RankLowering(ReductionLowering):
    def on_topk(self, node: Node) -> bool:
        settings = self.settings(node)
        source, count, dim = self.reducible(settings), settings["k"], settings.get("dim", -1)
        if source is None or self.program.dtypes[source.base] not in _RANKED:
            return False
        if not isinstance(dim, int) or not isinstance(count, int) or not 1 <= count <= _MOST:
            return False
        if self.size(source, (dim,)) in (1, source.numel) or self.choice("topk") == "library":
            return False
        dim %= len(source.shape)
        down: Settings = {"smallest": not settings.get("largest", True)}
        shape, dtype = node.outputs[0].shape, node.outputs[0].dtype
        kept = tuple(1 if axis == dim else size for axis, size in enumerate(source.shape))
        ranks, values, places = (self.fresh(f"{node.name}_{part}") for part in ("ranks", "values", "indices"))
        self.compute(ranks, "ranked", (source,), {**down, "dim": dim}, source.shape, "int64")
        self.program.unstored.add(ranks)
        left = rank = self.view_of(ranks)
        pieces: dict[str, dict[str, View]] = {values: {}, places: {}}
        for number in range(count):
            found = self.fresh(f"{node.name}_{number}")
            self.reduce(found, "amax", left, (dim,), True, "int64")
            best = self.view_of(found)
            for whole, op, made in ((values, "unranked", dtype), (places, "place", "int64")):
                name = whole if count == 1 else self.fresh(f"{whole}_{number}")
                self.compute(name, op, (best,), down, kept, made)
                strides = contiguous(shape)
                pieces[whole][name] = View(whole, kept, strides, number * strides[dim])
            if number < count - 1:
                below, rest = (self.fresh(f"{found}_{part}") for part in ("below", "left"))
                self.compute(below, "lt", (rank, best), {}, source.shape, "bool")
                operands = (self.view_of(below), rank, _LOWEST)
                self.compute(rest, "where", operands, {}, source.shape, "int64")
                left = self.view_of(rest)
        if count > 1:
            self.program.add(Joined(values, pieces[values]), shape, dtype)
            self.program.add(Joined(places, pieces[places]), shape, "int64")
        both = (Ref(ref=values), Ref(ref=places))
        self.tuples[node.name] = Node(name=node.name, op="tuple", args=both, kwargs={}, outputs=())
        return True
