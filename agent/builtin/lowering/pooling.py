"""Lowering of pooling and depthwise convolution: reductions over windows, which are views that overlap.

max_pool2d(x, kernel_size=3, stride=2, padding=1) with x of [2, 3, 8, 8], whose strides are 192, 64, 8 and 1,
is one statement over a view of six axes:

    %max_pool2d = reduce amax(%x[2×192, 3×64, 4×16, 3×8, 3×1, 4×2] +-9 clipped, axes [3, 4])
        : float32[2, 3, 4, 4]

Axes 2 and 5 count the 4 by 4 windows: the next one is 2 rows of 8 elements (16), or 2 columns (2), further
on. Axes 3 and 4 count the 3 by 3 elements of a window: one row (8) or one column (1) further on. Padding of 1
begins a row and a column before the image, at element -9; a clip leaves out what lies outside, which for the
window in the upper left corner are 5 of 9 elements. The axis of windows along a row is the last one, so that
a vector reduces neighbouring windows, and the scheduler makes 96 columns of 9:

    0: 96 columns of 9, neighbours side by side: reads %x, writes %max_pool2d
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelwright.agent.builtin.ir.graph import Graph, Meta, Node
from kernelwright.agent.builtin.ir.ops import FLOATS, POINTWISE, Settings
from kernelwright.agent.builtin.ir.program import (
    Clip,
    Compute,
    Constant,
    View,
    contiguous,
    near,
    turned,
    vectorisable,
)
from kernelwright.agent.builtin.lowering.reductions import ReductionLowering
from kernelwright.agent.builtin.schedule import Schedule

_CHEAP = 12  # additions for an element, over all windows, up to which each computes it; chosen by hand
_LANES = 16  # channels that pooling with channels last needs at least: the floats of an AVX-512 vector
_MOST_PRODUCTS = 16  # products of a depthwise output; chosen by hand (with 49 the library is faster)


@dataclass(frozen=True)
class _Frame:
    """Geometry of windows: a number for each of a value's last axes, or the last ones before its channels."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before and after
    dilation: tuple[int, ...]
    channels_last: bool = False

    @classmethod
    def of(cls, settings: Settings, kernel: tuple[int, ...], stride: tuple[int, ...]) -> "_Frame":
        """Frame of a pooling or a convolution, with this stride if none is given."""
        given, rank = settings.get("padding", 0), len(kernel)
        dilation = _each(settings.get("dilation", 1), rank)
        if isinstance(given, str):
            both = [d * (k - 1) if given == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
            padding = tuple((total // 2, total - total // 2) for total in both)
        else:
            padding = tuple((p, p) for p in _each(given, rank))
        return cls(kernel, _each(settings.get("stride") or stride, rank), padding, dilation)

    @property
    def padded(self) -> bool:
        return any(before or after for before, after in self.padding)

    def along(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Sizes or strides of the axes that windows lie along, from those of all axes."""
        end = len(numbers) - self.channels_last
        return tuple(numbers[end - len(self.kernel) : end])

    def counts(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the number of windows along each axis, none cut off by the end of the padding."""
        each = zip(self.along(shape), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((size + sum(p) - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in each)

    def lonely(self, shape: Sequence[int]) -> bool:
        """Return True if there is one window along an axis, or one element in it."""
        return 1 in (*self.counts(shape), *self.kernel)

    def within(self, more: Sequence[tuple[int, int]]) -> "_Frame":
        """Return the same over a value of which the one with this frame is a padded copy."""
        both = zip(self.padding, more, strict=True)
        return replace(self, padding=tuple((a + before, b + after) for (a, b), (before, after) in both))


@dataclass(frozen=True)
class _Padded:
    """A value with `value` around its last axes, so many elements before and after."""

    source: View
    padding: tuple[tuple[int, int], ...]
    value: object


class WindowLowering(ReductionLowering):
    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        super().__init__(graph, schedule)
        self.pads: dict[str, _Padded] = {}

    def on_pad(self, node: Node) -> bool:
        """Note the padding for windows, which need no copy; one is made for all other readers."""
        settings = self.settings(node)
        source, given = self.operand(settings["self"]), settings["pad"]  # type: ignore[arg-type]
        if settings.get("mode", "constant") != "constant":
            return False
        if isinstance(source, View) and isinstance(given, tuple) and min(given) >= 0:
            pairs = tuple(zip(given[::2], given[1::2], strict=True))[::-1]
            self.pads[node.name] = _Padded(source, pairs, settings.get("value") or 0)
        return False

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
        """Lower a pooling in which every window counts the same number of elements."""
        settings, dtype = self.settings(node), node.meta.dtype
        source = self.operand_as_it_lies(settings["self"])  # type: ignore[arg-type]
        kernel = _each(settings["kernel_size"], rank)
        frame = _Frame.of(settings, kernel, stride=kernel)
        order = self.order(source)
        if order is not None:
            assert isinstance(source, View)
            source, frame = turned(source, order), replace(frame, channels_last=True)
            if order != _channels_last(rank) or source.shape[-1] < _LANES or frame.lonely(source.shape):
                return False
        if not isinstance(source, View) or dtype not in FLOATS or math.prod(kernel) == 1:
            return False
        counts_padding = op == "amax" or settings.get("count_include_pad", True)
        if frame.padded and not counts_padding:
            return False
        if frame.counts(source.shape) != node.meta.shape[-rank:]:
            return False
        source, frame = self.reached(node, source, frame, -math.inf if op == "amax" else 0)
        if not vectorisable(_windows(source, frame)) or self.choice("windows") == "library":
            return False
        windows = self.windows(source, frame)
        name = node.name if order is None else self.fresh(f"{node.name}_channels_last")
        first = len(source.shape) - 1
        dims = range(first, first + rank)
        if op == "amax":
            self.reduce(name, op, windows, dims, False, dtype)
        else:
            total = self.fresh(f"{node.name}_sum")
            self.reduce(total, op, windows, dims, False, "float64" if dtype == "float64" else "float32")
            divisor = settings.get("divisor_override") or math.prod(frame.kernel)
            assert isinstance(divisor, int)
            summed = self.view_of(total)
            if not self.compute(name, "div", (summed, Constant(divisor)), {}, summed.shape, dtype):
                return False
        if order is not None:
            self.define_turned(node.name, name, order)
        return True

    def on_conv1d(self, node: Node) -> bool:
        return self.depthwise(node, 1)

    def on_conv2d(self, node: Node) -> bool:
        return self.depthwise(node, 2)

    def on_conv3d(self, node: Node) -> bool:
        return self.depthwise(node, 3)

    def depthwise(self, node: Node, rank: int) -> bool:
        """Lower a convolution with filters for every channel: sums of products, with the bias added.

        Zeros of the padding are not multiplied, whatever the weights.
        """
        if self.layout == "channels_last" and rank > 1:
            return False
        settings, dtype = self.settings(node), node.meta.dtype
        source, weight = self.operand(settings["input"]), self.operand(settings["weight"])  # type: ignore[arg-type]
        bias = self.operand(settings.get("bias"))  # type: ignore[arg-type]
        if not isinstance(source, View) or not isinstance(weight, View) or isinstance(bias, Constant):
            return False
        channels, kernel = source.shape[-rank - 1], weight.shape[2:]
        alone = settings.get("groups", 1) == channels and weight.shape[1] == 1
        frame = _Frame.of(settings, kernel, stride=(1,) * rank)
        if not alone or not 1 < math.prod(kernel) <= _MOST_PRODUCTS:
            return False
        if len(source.shape) != rank + 2:
            return False
        if dtype not in ("float32", "float64") or not near(frame.stride[-1] * source.strides[-1]):
            return False
        if self.choice("windows") == "library":
            return False
        source, frame = self.reached(node, source, frame, 0)
        filters, along = weight.shape[0] // channels, weight.strides  # so many of each channel
        shape, strides = (*source.shape[:2], filters), (*source.strides[:2], 0)
        repeated = replace(source, shape=shape + source.shape[2:], strides=strides + source.strides[2:])
        windows = _windows(repeated, frame)
        spread = (0, along[0] * filters, along[0], *(0,) * (rank - 1), *along[2:], 0)
        weights = View(weight.base, windows.shape, spread, weight.offset)
        products, total = self.fresh(f"{node.name}_products"), self.fresh(f"{node.name}_sum")
        if not self.compute(products, "mul", (windows, weights), {}, windows.shape, dtype):
            return False
        self.program.roles[self.view_of(products).base] = "product"
        first = len(windows.shape) - 1 - rank
        name = node.name if bias is None else total
        self.reduce(name, "sum", self.view_of(products), range(first, first + rank), False, dtype)
        self.program.define(name, node.meta.shape, dtype)  # filters are channels
        if bias is None:
            return True
        added = View(bias.base, (bias.shape[0], *(1,) * rank), (bias.strides[0], *(0,) * rank), bias.offset)
        return self.compute(node.name, "add", (self.view_of(total), added), {}, node.meta.shape, dtype)

    def reached(self, node: Node, source: View, frame: _Frame, edge: float) -> tuple[View, _Frame]:
        """Return the value and its windows; a copy, with `edge` beyond its edge, where no clip describes it.

        Clips are of axes, and of one window, or of one element, there is none.
        """
        rank = len(frame.kernel)
        lonely = frame.lonely(source.shape)
        inner = self.pads.get(source.base) if source.linear and not frame.channels_last else None
        if inner is not None and not lonely and inner.value == edge and len(inner.padding) <= rank:
            step = frame.stride[-1] * inner.source.strides[-1]
            if near(step) and source.shape == self.program.shapes[source.base]:
                more = ((0, 0),) * (rank - len(inner.padding)) + inner.padding
                return inner.source, frame.within(more)
        if not frame.padded or not lonely:
            return source, frame
        return self.padded(node, source, frame.padding, edge), replace(frame, padding=((0, 0),) * rank)

    def windows(self, source: View, frame: _Frame, spent: float = 0.0) -> View:
        """Every element of every window. A value that is cheap to compute is computed for each of them.

        Whoever else reads the value still finds it; where nobody does, it is not computed by itself. `spent`:
        what is computed from it costs, in additions for each element that is there.
        """
        view = _windows(source, frame)
        statement = next((s for s in self.program.statements if s.name == source.base), None)
        if not isinstance(statement, Compute) or not source.linear or source.shape != statement.shape:
            return view
        times = view.numel / source.numel
        cost = spent + times * POINTWISE[statement.op].cost
        if statement.by_place or (times > 1 and cost > _CHEAP):
            return view
        operands = tuple(
            o if isinstance(o, Constant) else self.windows(o, frame, cost) for o in statement.operands
        )
        if not all(vectorisable(o) for o in operands if isinstance(o, View)):
            return view
        name = self.fresh(f"{statement.name}_windows")
        there = replace(statement, name=name, operands=operands, shape=view.shape)
        self.program.add(there, view.shape, statement.dtype)
        return self.view_of(name)

    def padded(self, node: Node, source: View, padding: Sequence[tuple[int, int]], value: float) -> View:
        """Return a copy of a value with so many elements of `value` before and after its last axes."""
        rank = len(padding)
        sizes = (size + sum(p) for size, p in zip(source.shape[-rank:], padding, strict=True))
        shape = (*source.shape[:-rank], *sizes)
        both = tuple(p for pair in reversed(padding) for p in pair)
        name = self.fresh(f"{node.name}_padded")
        strides = contiguous(shape) if source.linear else (0,) * len(shape)  # torch keeps the order of axes
        meta = Meta(shape=shape, dtype=node.meta.dtype, strides=strides)
        args, op = (node.args[0], both, value), "aten.constant_pad_nd.default"
        self.library(Node(name=name, op=op, args=args, kwargs={}, outputs=(meta,)))
        return self.view_of(name)


def _windows(source: View, frame: _Frame) -> View:
    """View of every element of every window; what lies beyond the edge is clipped.

    The last axis of the windows, or the channels, come last: the elements lie between it and the others, so
    that neighbouring windows are reduced in neighbouring SIMD lanes.
    """
    rank = len(frame.kernel)
    sizes, steps, count = frame.along(source.shape), frame.along(source.strides), frame.counts(source.shape)
    along = tuple(step * s for step, s in zip(steps, frame.stride, strict=True))
    within = tuple(step * d for step, d in zip(steps, frame.dilation, strict=True))
    before = [pair[0] for pair in frame.padding]
    lead = len(source.shape) - rank - frame.channels_last
    shape = (*source.shape[:lead], *count, *source.shape[lead + rank :])
    strides = (*source.strides[:lead], *along, *source.strides[lead + rank :])
    last = len(shape) - 1
    places = [axis if axis < last else last + rank for axis in range(lead, lead + rank)]  # of axes of windows
    elements = range(last, last + rank)
    clips = zip(places, elements, frame.stride, frame.dilation, before, sizes, strict=True)
    return View(
        source.base,
        (*shape[:-1], *frame.kernel, shape[-1]),
        (*strides[:-1], *within, strides[-1]),
        source.offset - sum(p * step for p, step in zip(before, steps, strict=True)),
        tuple(Clip(*numbers) for numbers, padding in zip(clips, frame.padding, strict=True) if any(padding)),
    )


def _channels_last(rank: int) -> tuple[int, ...]:
    """Return the axes of images of so many axes, in the order in which they lie."""
    return (0, *range(2, rank + 2), 1)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    """Return a size for each axis, where one may stand for all."""
    given = tuple(value) if isinstance(value, tuple) else (value,)
    return given * rank if len(given) == 1 else given
