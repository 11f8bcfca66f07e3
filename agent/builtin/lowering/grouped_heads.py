"""Heads of keys and values that are repeated for several queries: attention reads them as they are.

    key = key[:, :, None].expand(2, 8, 4, 512, 64).reshape(2, 32, 512, 64)
    key = key.repeat_interleave(4, dim=1)

Both write 4 copies of each head. `enable_gqa=True` has attention read the 8 heads of `key` itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.agent.builtin.ir.graph import Meta, Node, Ref

_SAME = {"view", "_unsafe_view", "reshape", "clone", "alias", "flatten", "contiguous"}


def heads_before_repeats(name: str, nodes: Mapping[str, Node], metas: Mapping[str, Meta]) -> str | None:
    """Return what a value of [images, heads, rows, columns] repeats each head of; None if it is no such."""
    images, heads, rows, columns = metas[name].shape
    node = nodes.get(name)
    while node is not None and node.operator in _SAME and node.meta.numel == metas[name].numel:
        whole = node.meta.shape
        if len(whole) != 4 and not (len(whole) == 5 and _is_split(whole, metas[name].shape)):
            return None
        node = _source(node, nodes)
    if node is None or node.op != "aten.expand.default" or not _is_split(node.meta.shape, metas[name].shape):
        return None
    groups = node.meta.shape[1]
    before = _source(node, nodes)
    if groups == heads or before is None or before.meta.shape != (images, groups, 1, rows, columns):
        return None
    found = before.args[0]
    while isinstance(found, Ref) and metas[found.ref].shape == before.meta.shape and found.ref in nodes:
        before = nodes[found.ref]
        found = before.args[0] if before.operator in ("slice", "alias", "view", "unsqueeze") else None
    if before.operator != "unsqueeze" or not isinstance(found, Ref):
        return None
    return found.ref if metas[found.ref].shape == (images, groups, rows, columns) else None


def _is_split(whole: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return True if a shape is another with its heads as groups of them."""
    return len(whole) == 5 and (whole[0], whole[1] * whole[2], *whole[3:]) == shape


def _source(node: Node, nodes: Mapping[str, Node]) -> Node | None:
    first = node.args[0]
    return nodes.get(first.ref) if isinstance(first, Ref) else None
