"""Lowering of pooling and depthwise convolution: reductions over windows, which are views that overlap."""

import math
from collections.abc import Sequence
from typing import Any

from agent.builtin.graph import Meta, Node
from agent.builtin.lower_reductions import ReductionLowering
from agent.builtin.lowering import FLOATS, vectorisable
from agent.builtin.program import Constant, View, contiguous

_MOST_PRODUCTS = 16  # of an output, summed in a row; with 49 the library is faster (docs/LOG.md)


class WindowLowering(ReductionLowering):
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
        assert isinstance(divisor, int)
        operands = (self.view_of(total), Constant(divisor))
        return self.compute(node.name, "div", operands, {}, node.meta.shape, dtype)

    def on_conv1d(self, node: Node) -> bool:
        return self.depthwise(node, 1)

    def on_conv2d(self, node: Node) -> bool:
        return self.depthwise(node, 2)

    def on_conv3d(self, node: Node) -> bool:
        return self.depthwise(node, 3)

    def depthwise(self, node: Node, rank: int) -> bool:
        """A convolution in which every channel has filters of its own: as sums of products, bias added."""
        settings, dtype = self.settings(node), node.meta.dtype
        source, weight = self.operand(settings["input"]), self.operand(settings["weight"])  # type: ignore[arg-type]
        bias = self.operand(settings.get("bias")) if settings.get("bias") is not None else None  # type: ignore[arg-type]
        groups = settings.get("groups", 1)
        if not isinstance(source, View) or not isinstance(weight, View) or isinstance(bias, Constant):
            return False
        alone = len(source.shape) == rank + 2 and source.shape[1] == groups and weight.shape[1] == 1
        kernel, count = weight.shape[2:], node.meta.shape[2:]
        if not alone or dtype not in ("float32", "float64") or not 1 < math.prod(kernel) <= _MOST_PRODUCTS:
            return False
        stride, dilation = (_each(settings.get(name, 1), rank) for name in ("stride", "dilation"))
        padding = _padding(settings.get("padding", 0), kernel, dilation)
        if padding is None:
            return False
        if any(padding):
            source = self.padded(node, source, padding, 0.0)
        windows = _windows(source, kernel, stride, dilation, count)
        filters = weight.shape[0] // source.shape[1]  # of each channel
        batch, channels, *rest = windows.shape
        shape = (batch, channels, filters, *rest)
        steps = windows.strides
        windows = View(windows.base, shape, (*steps[:2], 0, *steps[2:]), windows.offset)
        along = weight.strides
        spread = (0, along[0] * filters, along[0], *(0,) * (rank - 1), *along[2:], 0)
        weights = View(weight.base, shape, spread, weight.offset)
        products, total = self.fresh(f"{node.name}_products"), self.fresh(f"{node.name}_sum")
        if not self.compute(products, "mul", (windows, weights), {}, shape, dtype):
            return False
        first = len(shape) - 1 - rank
        name = node.name if bias is None else total
        self.reduce(name, "sum", self.view_of(products), range(first, first + rank), False, dtype)
        self.program.define(name, node.meta.shape, dtype)  # filters are channels
        if bias is None:
            return True
        added = View(bias.base, (bias.shape[0], *(1,) * rank), (bias.strides[0], *(0,) * rank), bias.offset)
        return self.compute(node.name, "add", (self.view_of(total), added), {}, node.meta.shape, dtype)

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
        args, op = (node.args[0], both, value), "aten.constant_pad_nd.default"
        self.library(Node(name=name, op=op, args=args, kwargs={}, outputs=(meta,)))
        return self.view_of(name)


def _windows(
    source: View,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    count: Sequence[int],
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


def _padding(given: Any, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...] | None:
    """Of a convolution, on both sides; None where the sides differ."""
    if not isinstance(given, str):
        return _each(given, len(kernel))
    both = [d * (k - 1) if given == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
    return None if any(total % 2 for total in both) else tuple(total // 2 for total in both)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    """A size for each axis, where one may stand for all."""
    given = tuple(value) if isinstance(value, tuple) else (value,)
    return given * rank if len(given) == 1 else given
