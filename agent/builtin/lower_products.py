"""Lowering of products of many matrices with a vector each: reductions, which fuse with their neighbours."""

import math

from agent.builtin.graph import Node
from agent.builtin.lower_reductions import ReductionLowering
from agent.builtin.program import NEAR, View, broadcast, turned


class ProductLowering(ReductionLowering):
    def on_matmul(self, node: Node) -> bool:
        return self.by_vectors(node, "self", "other")

    def on_bmm(self, node: Node) -> bool:
        return self.by_vectors(node, "self", "mat2")

    def by_vectors(self, node: Node, left: str, right: str) -> bool:
        """`[..., 1, k] @ [..., k, n]`, or `[..., m, k] @ [..., k, 1]`."""
        settings, shape, dtype = self.settings(node), node.meta.shape, node.meta.dtype
        a, b = self.operand(settings[left]), self.operand(settings[right])  # type: ignore[arg-type]
        if not isinstance(a, View) or not isinstance(b, View) or dtype not in ("float32", "float64"):
            return False
        if min(len(a.shape), len(b.shape)) < 2 or math.prod(shape[:-2]) == 1 or 1 not in shape[-2:]:
            return False
        length = a.shape[-1]
        if length <= 1 or math.prod(shape) == 1:
            return False
        a, b = broadcast(a, (*shape[:-2], shape[-2], length)), broadcast(b, (*shape[:-2], length, shape[-1]))
        matrix, vector = (b, _turned(a)) if shape[-2] == 1 else (_turned(a), b)  # [..., k, n], [..., k, 1]
        reduced = len(shape) - 2
        if matrix.strides[-1] > NEAR:
            matrix, vector, reduced = _turned(matrix), _turned(vector), reduced + 1
        if matrix.strides[-1] > NEAR:
            return False
        vector = broadcast(vector, matrix.shape)
        products = self.fresh(f"{node.name}_products")
        if not self.compute(products, "mul", (matrix, vector), {}, matrix.shape, dtype):
            return False
        self.reduce(node.name, "sum", self.view_of(products), (reduced,), False, dtype)
        self.program.define(node.name, shape, dtype)
        return True


def _turned(view: View) -> View:
    """The view with its last two axes exchanged."""
    rank = len(view.shape)
    return turned(view, (*range(rank - 2), rank - 1, rank - 2))
