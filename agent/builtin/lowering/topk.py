"""Lowering of `topk`: each of a few largest elements is the largest of those that rank below the last one.

An element's rank is one number, of its value and its place. No two are equal, so that a reduction to the
largest rank finds both. A NaN ranks above all, as in torch; of equal values, where torch promises no order,
the first one does. The two largest of each row of x, of [512, 1000]:

    %topk_ranks = ranked(%x[512, 1000], smallest=False, dim=1) in float32 : int64[512, 1000]
    %topk_0 = reduce amax(%topk_ranks[512, 1000], axes [1]) : int64[512, 1]
    %topk_values_0 = unranked(%topk_0[512, 1], smallest=False) in int64 : float32[512, 1]
    %topk_indices_0 = place(%topk_0[512, 1], smallest=False) : int64[512, 1]
    %topk_0_below = lt(%topk_ranks[512, 1000], %topk_0[512×1, 1000×0]) in int64 : bool[512, 1000]

Ranks that are not below the first one are replaced by the lowest, and the maximum of the rest is the second.
All is one kernel of two passes over a row, 8000 bytes of ranks kept between them:

    0: 512 rows of 1000: reads %x, writes %topk_values_0, %topk_indices_0, %topk_values_1, %topk_indices_1
        pass 1: compute %topk_ranks; reduce to %topk_0; keep %topk_ranks
        once a row: %topk_values_0, %topk_indices_0
        pass 2: compute %topk_0_below, %topk_0_left; reduce to %topk_1
        once a row: %topk_values_1, %topk_indices_1
"""

from kernelwright.agent.builtin.ir.graph import Node, Ref
from kernelwright.agent.builtin.ir.ops import Settings
from kernelwright.agent.builtin.ir.program import Constant, Joined, View, contiguous
from kernelwright.agent.builtin.lowering.reductions import ReductionLowering

# Largest k. There is a pass over the row for each: at k = 8 it is 2.1 times as fast as eager on rows of 1024
# elements, 1.1 times on rows of 8192 (docs/LOG.md, 2026-11-23, "The few largest").
_MOST = 8
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
