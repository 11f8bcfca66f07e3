"""Lowering of attention: to a kernel of our own, or torch's call."""

from dataclasses import replace
from functools import cached_property

from kernelwright.agent.builtin.ir.graph import Arg, Node, Ref
from kernelwright.agent.builtin.ir.program import Attention, Library, View, broadcast
from kernelwright.agent.builtin.ir.text import HALVES
from kernelwright.agent.builtin.lowering.base import Lowering
from kernelwright.agent.builtin.lowering.grouped_heads import heads_before_repeats
from kernelwright.agent.builtin.lowering.masks import Band, ConstantMasks

_TYPES = {"float32", *HALVES}
_LARGEST = 512  # elements of a vector, of which the caches hold the blocks that a kernel works on
_ARGUMENTS: dict[str, Arg] = {
    "query": None, "key": None, "value": None, "attn_mask": None, "dropout_p": 0.0, "is_causal": False,
}  # fmt: skip
_IN_MEMORY = (0, 2, 1, 3)  # a result's axes: the heads of a token lie beside each other


class AttentionLowering(Lowering):
    @cached_property
    def masks(self) -> ConstantMasks:
        return ConstantMasks(self.graph)

    def on_scaled_dot_product_attention(self, node: Node) -> bool:
        shape, dtype = node.meta.shape, node.meta.dtype
        node = self.with_groups(node)
        band = self.band(node)
        if band is not None and not band.window:
            node = without_mask(node)
        can = self.can_be_own(node)
        if can and self.choice("attention") == "own":
            if band is not None and band.window:
                own = replace(self.own_attention(without_mask(node)), window=band.window)
            else:
                own = self.own_attention(node)
            if own.heads_first:
                self.program.add(own, shape, dtype)
            else:
                self.program.add(own, own.shape, dtype)
                self.define_turned(node.name, own.name, _IN_MEMORY)
            return True
        if len(shape) != 4:
            return False
        base, size = self.fresh(f"{node.name}_heads"), tuple(shape[axis] for axis in _IN_MEMORY)
        self.program.add(Library(base, node, _IN_MEMORY), size, dtype)
        self.define_turned(node.name, base, _IN_MEMORY)
        return True

    def with_groups(self, node: Node) -> Node:
        """Return the call with the heads of keys and values before they were repeated, where both were."""
        settings = self.settings(node)
        if settings.get("enable_gqa") or len(node.meta.shape) != 4:
            return node
        metas, nodes = self.graph.metas(), {each.name: each for each in self.graph.nodes}
        found = []
        for name in ("key", "value"):
            arg = settings[name]
            assert isinstance(arg, Ref)
            before = heads_before_repeats(arg.ref, nodes, metas)
            if before is None:
                return node
            found.append(before)
        key, value = found
        if metas[key].shape[1] != metas[value].shape[1]:
            return node
        query, _, _, *others = node.args
        args = (query, Ref(ref=key), Ref(ref=value), *others)
        return node.model_copy(update={"args": args, "kwargs": {**node.kwargs, "enable_gqa": True}})

    def band(self, node: Node) -> Band | None:
        """Return which keys a mask leaves, if it is causal or that of a sliding window."""
        settings = self.settings(node)
        mask = settings.get("attn_mask")
        if not isinstance(mask, Ref) or settings.get("is_causal"):
            return None
        return self.masks.band(mask.ref)

    def can_be_own(self, node: Node) -> bool:
        """Return True if our kernels do what a call does."""
        settings, shape, dtype = self.settings(node), node.meta.shape, node.meta.dtype
        mask = settings.get("attn_mask")
        vectors = [self.lying(settings[name]) for name in ("query", "key", "value")]
        if dtype not in _TYPES or settings.get("dropout_p") or not 2 <= len(shape) <= 4:
            return False
        if mask is not None:
            lying = self.lying(mask)
            if lying is None or settings.get("is_causal") or len(lying.shape) > len(shape):
                return False
            if self.program.dtypes[lying.base] not in ("bool", "float32", dtype):
                return False
        for view in vectors:
            if view is None or len(view.shape) != len(shape) or self.program.dtypes[view.base] != dtype:
                return False
            if view.numel == 0 or view.shape[-1] > _LARGEST:
                return False
        return True

    def own_attention(self, node: Node) -> Attention:
        settings, shape = self.settings(node), node.meta.shape
        rank, mask = len(shape), settings.get("attn_mask")
        images, heads = shape[0] if rank > 2 else 1, shape[1] if rank > 3 else 1
        query, key, value = (
            _with_heads(self.together(settings[name]), rank) for name in ("query", "key", "value")
        )
        groups = max(key.shape[1], value.shape[1]) if settings.get("enable_gqa") else heads
        added: View | None = None
        if isinstance(mask, Ref):
            read = self.readable(mask.ref)
            assert isinstance(read, View)
            added = _with_heads(read, rank) if len(read.shape) == rank else read
            added = broadcast(added, (images, heads, query.shape[2], key.shape[2]))
        scale = settings.get("scale")
        first = rank < 4 or self.is_returned(node)
        return Attention(
            node.name if first else self.fresh(f"{node.name}_heads"),
            broadcast(query, (images, heads, *query.shape[2:])),
            broadcast(key, (images, groups, *key.shape[2:])),
            broadcast(value, (images, groups, *value.shape[2:])),
            added,
            float(scale) if isinstance(scale, int | float) else query.shape[3] ** -0.5,
            bool(settings.get("is_causal")),
            first,
            node.meta.dtype,
        )

    def is_returned(self, node: Node) -> bool:
        """Return True if the result is one of the graph's, whose heads come before its queries."""
        alike = {node.name}
        for other in self.graph.nodes:
            if other.op == "aten.alias.default" and alike & set(other.inputs):
                alike.add(other.name)
        metas = self.graph.metas()
        return any(name in alike and metas[name].contiguous for name in self.graph.outputs)

    def lying(self, arg: object) -> View | None:
        """View of a value as it lies in memory; None where it does not exist."""
        view = self.program.views.get(arg.ref) if isinstance(arg, Ref) else None
        return view if isinstance(view, View) and not view.clips else None

    def together(self, arg: object) -> View:
        """Return a value, or a copy of it, in which the elements of a vector lie together."""
        assert isinstance(arg, Ref)
        view = self.view_of(arg.ref)
        if view.strides[-1] == 1 or view.shape[-1] == 1:
            return view
        return self.view_of(self.copied_as_it_reads(arg.ref, view))


def without_mask(node: Node) -> Node:
    """Return a call of attention that is causal in place of its mask."""
    given = dict(zip(_ARGUMENTS, node.args, strict=False)) | node.kwargs
    given |= {"attn_mask": None, "is_causal": True}
    args = tuple(given.pop(name, default) for name, default in _ARGUMENTS.items())
    return node.model_copy(update={"args": args, "kwargs": given})


def _with_heads(view: View, rank: int) -> View:
    """Return a view of this rank as [images, heads, rows, columns]."""
    if rank == 4:
        return view
    place = 0 if rank == 2 else 1
    shape, strides = view.shape, view.strides
    added = (1,) * (4 - rank)
    return View(
        view.base,
        (*shape[:place], *added, *shape[place:]),
        (*strides[:place], *(0 for _ in added), *strides[place:]),
        view.offset,
    )
