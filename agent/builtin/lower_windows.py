"""Lowering of pooling: reductions over windows, which are views of their input that overlap."""

import math
from typing import Any

from agent.builtin.graph import Meta, Node
from agent.builtin.lowering import FLOATS, Lowering, vectorisable
from agent.builtin.program import Constant, View, contiguous


class WindowLowering(Lowering):
    def on_max_pool1d(self, node: Node) -> bool:
        return self.pool(node, 1, "amax")

    def on_max_pool2d(self, node: Node) -> bool:
        return self.pool(node, 2, "amax")

    def on_max_pool3d(self, node: Node) -> bool:
        return self.pool(node, 3, "amax")

    def on_avg_pool1d(self, node: Node) -> bool:
        return self.pool(node, 1, "sum")

    def on_avg_pool2d(self, node: Node) -> bool:
        return self.pool(node, 2, "sum")

    def on_avg_pool3d(self, node: Node) -> bool:
        return self.pool(node, 3, "sum")

    def pool(self, node: Node, rank: int, op: str) -> bool:
        """Windows over the last `rank` axes; a padded input is made first. Not where windows are cut off."""
        settings = self.settings(node)
        source, dtype = self.operand(settings["self"]), node.meta.dtype  # type: ignore[arg-type]
        if not isinstance(source, View) or dtype not in FLOATS:
            return False
        kernel = _each(settings["kernel_size"], rank)
        stride = _each(settings.get("stride") or kernel, rank)
        padding = _each(settings.get("padding", 0), rank)
        dilation = _each(settings.get("dilation", 1), rank)
        counts_padding = op == "amax" or settings.get("count_include_pad", True)
        if math.prod(kernel) == 1 or (any(padding) and not counts_padding):
            return False
        sizes = [size + 2 * p for size, p in zip(source.shape[-rank:], padding, strict=True)]
        whole = [
            (size - d * (k - 1) - 1) // s + 1
            for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
        ]
        if tuple(whole) != node.meta.shape[-rank:]:
            return False
        if any(padding):
            source = self.padded(node, source, padding, -math.inf if op == "amax" else 0.0)
        windows = _windows(source, kernel, stride, dilation, whole)
        if not vectorisable(windows):
            return False
        first = len(source.shape) - 1
        dims = range(first, first + rank)
        if op == "amax":
            self.reduce(node.name, op, windows, dims, False, dtype)
            return True
        total = self.fresh(f"{node.name}_sum")
        self.reduce(total, op, windows, dims, False, "float64" if dtype == "float64" else "float32")
        divisor = settings.get("divisor_override") or math.prod(kernel)
        operands = (self.view_of(total), Constant(int(divisor)))  # type: ignore[arg-type]
        return self.compute(node.name, "div", operands, {}, node.meta.shape, dtype)

    def padded(self, node: Node, source: View, padding: tuple[int, ...], value: float) -> View:
        """A copy of the input with `padding` elements of `value` on both sides of its last axes."""
        rank = len(padding)
        shape = source.shape[:-rank] + tuple(
            size + 2 * p for size, p in zip(source.shape[-rank:], padding, strict=True)
        )
        both = tuple(p for p in reversed(padding) for _ in range(2))
        name = self.fresh(f"{node.name}_padded")
        strides = contiguous(shape) if source.linear else (0,) * len(shape)  # torch keeps the order of axes
        meta = Meta(shape=shape, dtype=node.meta.dtype, strides=strides)
        args = (node.args[0], both, value)
        self.library(Node(name=name, op="aten.constant_pad_nd.default", args=args, kwargs={}, outputs=(meta,)))
        return self.view_of(name)


def _windows(
    source: View, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], count: list[int]
) -> View:
    """Every element of every window. The windows' last axis comes last: their elements lie between its and
    the others, so that neighbouring windows are reduced side by side.
    """
    rank = len(kernel)
    lead, steps = source.strides[:-rank], source.strides[-rank:]
    along = tuple(step * s for step, s in zip(steps, stride, strict=True))
    within = tuple(step * d for step, d in zip(steps, dilation, strict=True))
    shape = (*source.shape[:-rank], *count[:-1], *kernel, count[-1])
    return View(source.base, shape, (*lead, *along[:-1], *within, along[-1]), source.offset)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    """A size for each axis, where one may stand for all."""
    given = tuple(value) if isinstance(value, tuple) else (value,)
    return given * rank if len(given) == 1 else given
