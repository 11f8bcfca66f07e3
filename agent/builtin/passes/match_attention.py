"""Attention matching: softmax(scale * Q K^T + mask) V that a reference spells out becomes torch's one call.

A kernel of our own may take the place of that call. Either goes through keys and values in blocks and never
has the scores in memory (Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135). A row of scores that
the mask leaves out altogether is NaN in the reference and zero in these: there the mask becomes NaN. With q,
k and v of [2, 8, 128, 64], the task

    s = (q @ k.transpose(-1, -2)) * 0.125
    return torch.softmax(s, -1) @ v

is traced as two products and the six operators of a softmax, over scores of [2, 8, 128, 128], 1 MiB:

    %matmul = aten.matmul(%q, %permute) : float32[2, 8, 128, 128]
    %mul = aten.mul.Tensor(%matmul, 0.125) : float32[2, 8, 128, 128]
    %matmul_1 = aten.matmul(%mul_1, %v) : float32[2, 8, 128, 64]

From the last product backwards these are matched, if nothing else reads what lies between, and replaced:

    %key = aten.transpose.int(%permute, -2, -1) : float32[2, 8, 128, 64]
    %attention = aten.scaled_dot_product_attention(%q, %key, %v, None, 0.0, False, scale=0.125)
        : float32[2, 8, 128, 64]
    %matmul_1 = aten.alias(%attention) : float32[2, 8, 128, 64]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.builtin.ir.graph import Arg, DType, Graph, Meta, Node, Ref
from kernelwright.agent.builtin.ir.program import contiguous

_PRODUCTS = {"aten.matmul.default", "aten.bmm.default"}
_ABSORBS = 1e30  # a summand of this size or more, negative, masks a score of any size; chosen by hand


@dataclass(frozen=True)
class _Attention:
    """Attention as found in the graph, by the names of values; `added` and `condition` are masks."""

    query: str
    turned_key: str
    value: str
    scale: float
    added: str | None
    condition: str | None
    instead: tuple[float, float]  # added where the condition holds, and where it does not

    @property
    def may_be_empty(self) -> bool:
        """True if a row may be masked out entirely, so that it is NaN."""
        return self.added is not None or (self.condition is not None and -math.inf in self.instead)


def with_fused_attention(graph: Graph) -> Graph | None:
    """Return the graph with a call for each attention in it; None where there is none."""
    return _Rewriting(graph).run()


class _Rewriting:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.metas = graph.metas()
        self.nodes = {node.name: node for node in graph.nodes}
        self.readers: dict[str, int] = {}
        for name in (
            *(name for node in graph.nodes for name in node.inputs),
            *graph.results,
        ):
            self.readers[name] = self.readers.get(name, 0) + 1

    def run(self) -> Graph | None:
        nodes: list[Node] = []
        found = False
        for node in self.graph.nodes:
            attention = self.match(node)
            if attention is None:
                nodes.append(node)
                continue
            nodes += _Calls(self.metas, attention, node).nodes()
            found = True
        if not found:
            return None
        return self.graph.model_copy(update={"nodes": tuple(self.needed(nodes))})

    def needed(self, nodes: Sequence[Node]) -> list[Node]:
        wanted = set(self.graph.results)
        kept = []
        for node in reversed(nodes):
            if node.name in wanted:
                kept.append(node)
                wanted.update(node.inputs)
        return kept[::-1]

    # The pattern, from its end.

    def match(self, node: Node) -> _Attention | None:
        if node.op not in _PRODUCTS or len(node.meta.shape) not in (3, 4):
            return None
        weights, value = node.args[:2]
        scores = self.normalised(weights)
        if scores is None or not isinstance(value, Ref):
            return None
        added = condition = None
        instead = (0.0, 0.0)
        at: Node | None = scores
        if scores.op == "aten.where.self":
            masked = self.masked(scores)
            if masked is None:
                return None
            condition, at, instead = masked
        if at is not None and at.op == "aten.add.Tensor" and not at.kwargs:
            added, at = self.shifted(at)
        scale = 1.0
        while at is not None and at.op in ("aten.mul.Tensor", "aten.div.Tensor"):
            source, factor = at.args
            if isinstance(factor, bool) or not isinstance(factor, int | float) or factor == 0:
                return None
            scale = scale * factor if "mul" in at.op else scale / factor
            at = self.inner(source)
        if at is None or at.op not in _PRODUCTS:
            return None
        query, turned_key = at.args[:2]
        if not isinstance(query, Ref) or not isinstance(turned_key, Ref):
            return None
        found = _Attention(query.ref, turned_key.ref, value.ref, scale, added, condition, instead)
        return found if self.fits(found, node) else None

    def inner(self, arg: Arg, readers: int = 1) -> Node | None:
        """Return the node behind an argument, if only so many others read it."""
        if not isinstance(arg, Ref) or self.readers[arg.ref] != readers:
            return None
        return self.nodes.get(arg.ref)

    def normalised(self, arg: Arg) -> Node | None:
        """Node whose softmax along the last axis the argument is; None if it is none."""
        product = self.inner(arg)
        if product is None or product.op != "aten.mul.Tensor":
            return None
        exponential, inverse = self.inner(product.args[0], 2), self.inner(product.args[1])
        if exponential is None or inverse is None or inverse.op != "aten.reciprocal.default":
            return None
        total = self.inner(inverse.args[0])
        difference = self.inner(exponential.args[0])
        if total is None or difference is None or difference.op != "aten.sub.Tensor":
            return None
        scores, extreme = self.inner(difference.args[0], 2), self.inner(difference.args[1])
        if scores is None or extreme is None or difference.kwargs:
            return None
        whole = (total.op, exponential.op, extreme.op)
        if whole != ("aten.sum.dim_IntList", "aten.exp.default", "aten.amax.default"):
            return None
        alike = total.args[0] == product.args[0] and extreme.args[0] == difference.args[0]
        last = len(scores.meta.shape) - 1
        rows = all(_is_last(node, last) for node in (total, extreme))
        return scores if alike and rows else None

    def masked(self, node: Node) -> tuple[str, Node, tuple[float, float]] | None:
        """Return a condition that leaves scores out, or keeps them, the scores, and what to add for it."""
        condition, *branches = node.args
        fills = [self.number(branch) for branch in branches]
        for fill, scores, place in ((fills[0], branches[1], 0), (fills[1], branches[0], 1)):
            inner = self.inner(scores)
            if not isinstance(condition, Ref) or inner is None or inner.meta.shape != node.meta.shape:
                continue
            if fill is not None and fill <= -_ABSORBS:
                return condition.ref, inner, (fill, 0.0) if place == 0 else (0.0, fill)
        return None

    def number(self, arg: Arg) -> float | None:
        if isinstance(arg, Ref):
            node = self.nodes.get(arg.ref)
            if node is not None and node.op in ("aten.scalar_tensor.default", "aten.full.default"):
                arg = node.args[-1]
        return float(arg) if isinstance(arg, int | float) else None

    def shifted(self, node: Node) -> tuple[str | None, Node | None]:
        """Mask that is added to scores, and the scores: the one of the two that comes from a product."""
        for scores, added in (node.args, node.args[::-1]):
            inner = self.inner(scores)
            if inner is None or not isinstance(added, Ref) or inner.meta.shape != node.meta.shape:
                continue
            if inner.op in {*_PRODUCTS, "aten.mul.Tensor", "aten.div.Tensor"}:
                return added.ref, inner
        return None, None

    def fits(self, found: _Attention, node: Node) -> bool:
        """Return True if the call takes these operands as they are."""
        query, key, value = (self.metas[n] for n in (found.query, found.turned_key, found.value))
        same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        if not same or query.shape[-1] != value.shape[-1] or len(query.shape) != len(node.meta.shape):
            return False
        if {query.dtype, key.dtype, value.dtype} != {node.meta.dtype} or node.meta.numel == 0:
            return False
        scores = (*query.shape[:-1], key.shape[-1])
        for name, wanted in ((found.added, node.meta.dtype), (found.condition, "bool")):
            if name is not None:
                mask = self.metas[name]
                if mask.dtype != wanted or mask.shape[-2:] != scores[-2:] or len(mask.shape) > len(scores):
                    return False
        return True


def _is_last(node: Node, last: int) -> bool:
    dims, keepdim = (*node.args[1:], *node.kwargs.values())[:2] if len(node.args) > 2 else (None, False)
    return dims in ((-1,), (last,)) and keepdim is True


def _broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(left), len(right))
    return tuple(max(pair) for pair in zip(*((1,) * (rank - len(s)) + s for s in (left, right)), strict=True))


class _Calls:
    """The nodes that take the place of an attention's last product."""

    def __init__(self, metas: dict[str, Meta], found: _Attention, product: Node) -> None:
        self.found = found
        self.product = product
        self.metas = metas
        self.made: list[Node] = []

    def nodes(self) -> list[Node]:
        found, product = self.found, self.product
        rank = len(product.meta.shape)
        operands = [found.query, self.turned(found.turned_key), found.value]
        mask = self.mask()
        shape = product.meta.shape
        if rank == 3:
            operands = [self.with_axis(name, 1) for name in operands]
            shape = (shape[0], 1, *shape[1:])
        while mask is not None and len(self.metas[mask].shape) not in (2, 4):
            mask = self.with_axis(mask, 4 - rank)
        args = (*(Ref(ref=name) for name in operands), Ref(ref=mask) if mask else None, 0.0, False)
        call, name = "aten.scaled_dot_product_attention.default", self.fresh("attention")
        meta = Meta(shape=shape, dtype=product.meta.dtype, strides=contiguous(shape))
        self.add(Node(name=name, op=call, args=args, kwargs={"scale": found.scale}, outputs=(meta,)))
        like: tuple[str, tuple[Arg, ...]] = ("aten.alias.default", ())
        if rank == 3:
            like = ("aten.squeeze.dims", ((1,),))
        self.made.append(product.model_copy(update={"op": like[0], "args": (Ref(ref=name), *like[1])}))
        return self.made

    def mask(self) -> str | None:
        """Name of what to add to scores, NaN in rows that are left out entirely; None for no mask."""
        found, dtype = self.found, self.product.meta.dtype
        mask = found.added
        if found.condition is not None:
            shape = self.metas[found.condition].shape
            sides = [self.number(value) for value in found.instead]
            if mask is not None:
                sides[found.instead.index(0.0)] = mask  # it does not count where the condition says so
                shape = _broadcast(shape, self.metas[mask].shape)
            mask = self.compute("masked", "aten.where.self", shape, dtype, found.condition, *sides)
        if mask is None or not found.may_be_empty:
            return mask
        shape = self.metas[mask].shape
        rows = (*shape[:-1], 1)
        most = self.compute("most", "aten.amax.default", rows, dtype, mask, (-1,), True)
        empty = self.compute("empty", "aten.eq.Scalar", rows, "bool", most, -math.inf)
        numbers = [self.number(value) for value in (math.nan, 0.0)]
        nothing = self.compute("nothing", "aten.where.self", rows, dtype, empty, *numbers)
        return self.compute("mask", "aten.add.Tensor", shape, dtype, mask, nothing)

    def number(self, value: float) -> str:
        dtype = self.product.meta.dtype
        name, meta = self.fresh("number"), Meta(shape=(), dtype=dtype, strides=())
        as_dtype: dict[str, Arg] = {"dtype": DType(dtype=dtype)}
        op = "aten.scalar_tensor.default"
        self.add(Node(name=name, op=op, args=(value,), kwargs=as_dtype, outputs=(meta,)))
        return name

    def compute(self, name: str, op: str, shape: tuple[int, ...], dtype: str, *args: Arg) -> str:
        """Add a node and return its name; arguments that are strings name values."""
        name = self.fresh(name)
        meta = Meta(shape=shape, dtype=dtype, strides=contiguous(shape))
        given = tuple(Ref(ref=arg) if isinstance(arg, str) else arg for arg in args)
        self.add(Node(name=name, op=op, args=given, kwargs={}, outputs=(meta,)))
        return name

    def turned(self, source: str) -> str:
        """Return a value with its last two axes exchanged."""
        meta = self.metas[source]
        shape = (*meta.shape[:-2], meta.shape[-1], meta.shape[-2])
        return self.compute("key", "aten.transpose.int", shape, meta.dtype, source, -2, -1)

    def with_axis(self, source: str, axis: int) -> str:
        """Return a value with another axis, of one element."""
        meta = self.metas[source]
        shape = (*meta.shape[:axis], 1, *meta.shape[axis:])
        return self.compute(f"{source}_heads", "aten.unsqueeze.default", shape, meta.dtype, source, axis)

    def add(self, node: Node) -> None:
        self.made.append(node)
        self.metas[node.name] = node.meta

    def fresh(self, name: str) -> str:
        while name in self.metas:
            name += "_"
        return name
