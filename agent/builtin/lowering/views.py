"""Lowering of views: other shapes, strides and pieces of a value that exists."""

import math
from dataclasses import replace
from typing import Any

import torch

from kernelwright.agent.builtin.ir.graph import Arg, Node, Ref
from kernelwright.agent.builtin.ir.program import Constant, Library, View
from kernelwright.agent.builtin.lowering.base import Lowering

SAME_OPS = {"clone", "alias", "detach", "lift_fresh_copy", "contiguous", "dropout"}
_VIEWS = """
view _unsafe_view reshape unsqueeze squeeze expand permute transpose t alias detach slice select unfold
diagonal flatten
"""
VIEW_OPS = frozenset(_VIEWS.split())


class ViewLowering(Lowering):
    def view(self, node: Node, short: str) -> None:
        source = self.program.views.get(node.args[0].ref) if isinstance(node.args[0], Ref) else None
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
        _, name, overload = node.op.split(".")
        try:
            strided = storage.as_strided(source.shape, source.strides, source.offset)
            result = getattr(getattr(torch.ops.aten, name), overload)(strided, *map(_plain, node.args[1:]))
        except RuntimeError:  # a view of elements that no stride of torch's can describe: it copies
            self.library(node)
            return
        view = View(source.base, tuple(result.shape), tuple(result.stride()), result.storage_offset())
        self.program.views[node.name] = view
        self.program.view_nodes[node.name] = node

    def on_flip(self, node: Node) -> bool:
        """Return a view with negative strides; torch has none and copies where it needs the value."""
        dims = self.settings(node)["dims"]
        source = self.program.views.get(node.args[0].ref) if isinstance(node.args[0], Ref) else None
        if not isinstance(source, View) or source.clips or not isinstance(dims, tuple):
            return False
        strides, offset = list(source.strides), source.offset
        for dim in dims:
            offset += (source.shape[dim] - 1) * strides[dim]
            strides[dim] = -strides[dim]
        self.program.views[node.name] = replace(source, strides=tuple(strides), offset=offset)
        self.program.view_nodes[node.name] = node
        return True

    def on_split(self, node: Node) -> bool:
        return self.pieces(node)

    def on_split_with_sizes(self, node: Node) -> bool:
        return self.pieces(node)

    def pieces(self, node: Node) -> bool:
        """Return a split as one slice for each piece."""
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

    def on_dropout(self, node: Node) -> bool:
        settings = self.settings(node)
        if settings["p"] == 0.0 or not settings["train"]:
            self.view(node, "dropout")
            return True
        return False

    def on_getitem(self, node: Node) -> bool:
        source, index = node.args
        assert isinstance(source, Ref) and isinstance(index, int)
        parent = self.tuples[source.ref]
        if parent.op == "tuple":
            item = parent.args[index]
            assert isinstance(item, Ref)
            self.program.views[node.name] = self.program.views[item.ref]
            self.program.view_nodes[node.name] = same(node, item.ref)
        else:
            fixed = node.model_copy(update={"args": (Ref(ref=parent.name), index)})
            self.program.add(Library(node.name, fixed), node.meta.shape, node.meta.dtype)
        return True


def same(node: Node, other: str) -> Node:
    """`node` as another name of `other`."""
    return Node(
        name=node.name, op="aten.alias.default", args=(Ref(ref=other),), kwargs={}, outputs=node.outputs
    )


def _plain(arg: Arg) -> Any:
    if isinstance(arg, tuple):
        return [_plain(item) for item in arg]
    return arg
