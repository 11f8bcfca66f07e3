"""Coverage: bytes and FLOPs of a program that its own kernels do, and those that are left to torch's library.

A unit (the region of a kernel, or a library call) has to read each element of its operands that it uses
once, whatever reads it again, and to write each of its results once. FLOPs of products and convolutions are
counted as `torch.utils.flop_counter` does: two for each pair that is multiplied and added. A pointwise
operator is one for each element, a reduction one for each element that it reads, and any other library call
one for each element of its result or of its largest operand, whichever has more. A copy counts as such; a
submodule that is left to torch counts as one call, as nothing is known of what it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from kernelwright.agent.builtin.compile import program_of
from kernelwright.agent.builtin.fusion.recompute import fuse_recomputing
from kernelwright.agent.builtin.ir.graph import Arg, DType, Graph, Meta, Ref
from kernelwright.agent.builtin.ir.program import (
    Attention,
    Compute,
    Fused,
    Library,
    Program,
    Reduce,
    View,
    views_of,
)
from kernelwright.agent.builtin.ir.space import Region
from kernelwright.agent.builtin.ir.uses import Uses, operands, stored
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.kernelbench.evaluator.reference.operators import FlopCounter

_GATHERS = {"embedding", "gather", "index", "index_select", "take", "take_along_dim"}  # of rows or elements
_BOOKKEEPING = {"carried"}  # operators that the reference does not have


@dataclass(frozen=True)
class Cost:
    bytes: int = 0
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True)
class Coverage:
    own: Cost
    library: Cost

    @property
    def bytes_share(self) -> float:
        """0 to 1; 0 where nothing is read or written."""
        return self.own.bytes / max(1, self.own.bytes + self.library.bytes)

    @property
    def flops_share(self) -> float:
        """0 to 1; 0 where nothing is computed."""
        return self.own.flops / max(1, self.own.flops + self.library.flops)


def coverage(graph: Graph, schedule: Schedule) -> Coverage:
    """Coverage of the program that a candidate of this schedule runs. Raises Untraceable.

    Where the forward itself is left to torch, nothing is known of what it does around its parts.
    """
    if graph.parts:
        each = [coverage(part, schedule) for part in graph.parts.values()]
        return Coverage(sum((c.own for c in each), Cost()), sum((c.library for c in each), Cost()))
    program = program_of(graph, schedule)
    program, units = fuse_recomputing(program, apart=schedule.value("fuse") == "apart")
    uses = Uses(program)
    own = library = Cost()
    for unit in units:
        if isinstance(unit, Library):
            library += _called(unit, program)
        elif isinstance(unit, Attention):
            own += _attended(unit, program)
        else:
            own += _computed(unit, stored(unit, program, uses), program)
    return Coverage(own, library)


def _computed(region: Region, outputs: Iterable[str], program: Program) -> Cost:
    steps = region.recurrence.steps if region.recurrence is not None else 1
    left = region.recurrence.results if region.recurrence is not None else {}
    inside = {s.name for s in region.statements}
    used: dict[str, list[View]] = {}
    picked: dict[str, int] = {}  # elements that an index chooses
    for s in region.statements:
        for view in views_of(s):
            if view.base in inside:
                continue
            if view.table or (isinstance(s, Reduce) and s.op == "pick" and view is s.operand):
                picked[view.base] = picked.get(view.base, 0) + steps * math.prod(s.shape)
            else:
                used.setdefault(view.base, []).append(view)
    moved = 0
    for base in {*used, *picked}:
        size = math.prod(program.shapes[base])
        read = min(size, elements(used.get(base, ()), size, steps) + picked.get(base, 0))
        moved += read * _bytes(program.dtypes[base])
    for name in outputs:
        size = math.prod(program.shapes[left[name].base if name in left else name])
        written = elements([left[name]], size, steps) if name in left else size
        moved += written * _bytes(program.dtypes[name])
    return Cost(moved, steps * sum(_flops(s) for s in region.statements))


def _attended(attention: Attention, program: Program) -> Cost:
    """Cost of attention as torch counts it: both products whole, whatever a mask leaves out."""
    moved = math.prod(attention.shape) * _bytes(attention.dtype)
    used: dict[str, list[View]] = {}
    for view in views_of(attention):
        used.setdefault(view.base, []).append(view)
    for base, views in used.items():
        moved += elements(views, math.prod(program.shapes[base])) * _bytes(program.dtypes[base])
    return Cost(moved, attention.flop)


def _flops(statement: Fused) -> int:
    if isinstance(statement, Compute):
        return 0 if statement.op in _BOOKKEEPING else math.prod(statement.shape)
    if isinstance(statement, Reduce) and statement.op == "pick":
        return math.prod(statement.shape)
    return statement.operand.numel


def _called(call: Library, program: Program) -> Cost:
    operator, name = None, call.node.op
    if name == "getitem":
        return Cost()
    if name.startswith("aten."):
        _, name, overload = name.split(".")
        operator = getattr(getattr(torch.ops.aten, name), overload)
        if operator.is_view:
            return Cost()
    written = sum(meta.numel for meta in call.node.outputs)
    moved = sum(meta.numel * _bytes(meta.dtype) for meta in call.node.outputs)
    used: dict[str, list[View]] = {}
    for view in operands(call, program):
        if view.base in program.shapes:  # else it is filled with one number
            used.setdefault(view.base, []).append(view)
    largest = written
    for number, (base, views) in enumerate(used.items()):
        read = elements(views, math.prod(program.shapes[base]))
        if name in _GATHERS and number == 0:
            read = min(read, written)
        largest = max(largest, read)
        moved += read * _bytes(program.dtypes[base])
    if operator is None:
        return Cost(moved, largest)
    with FlopCounter() as counter:
        arguments = [_shaped(arg, program) for arg in call.node.args]
        operator(*arguments, **{key: _shaped(arg, program) for key, arg in call.node.kwargs.items()})
    return Cost(moved, counter.flops or largest)


def _shaped(arg: Arg, program: Program) -> Any:
    """Return an argument as the operator takes it, tensors without data."""
    if isinstance(arg, DType):
        return getattr(torch, arg.dtype)
    if isinstance(arg, tuple):
        return [_shaped(item, program) for item in arg]
    if not isinstance(arg, Ref):
        return arg
    view = program.views.get(arg.ref)
    if isinstance(view, View):
        meta = Meta(shape=view.shape, dtype=program.dtypes[view.base], strides=view.strides)
    else:
        meta = program.graph.metas()[arg.ref]
    return torch.empty_strided(meta.shape, meta.strides, dtype=getattr(torch, meta.dtype), device="meta")


def elements(views: Iterable[View], size: int, steps: int = 1) -> int:
    """Count the elements, of `size`, of a value that lie in any of these views of it, in any step."""
    views = tuple(views)
    if any(view.linear and view.numel == size for view in views):
        return size
    reached = np.zeros(size if views else 0, dtype=np.bool_)
    for view in views:
        for part in _there(view):
            axes = [(n, stride) for n, stride in zip(part.shape, part.strides, strict=True) if stride]
            axes += [(steps, part.move)] if part.move else []
            shape, strides = [n for n, _ in axes], [stride for _, stride in axes]
            as_strided(reached[part.offset :], shape, strides)[...] = True
    return int(reached.sum())


def _there(view: View) -> Iterator[View]:
    """Return a view in parts that hold no element beyond an edge."""
    if not view.clips:
        if view.numel:
            yield view
        return
    clip, *rest = view.clips
    for element in range(view.shape[clip.elements]):
        before = clip.padding - element * clip.dilation  # the edge, from the first window's element
        first = max(0, -(-before // clip.stride))
        end = min(view.shape[clip.windows], (before + clip.size - 1) // clip.stride + 1)
        if first >= end:
            continue
        shape = list(view.shape)
        shape[clip.windows], shape[clip.elements] = end - first, 1
        offset = first * view.strides[clip.windows] + element * view.strides[clip.elements]
        yield from _there(replace(view, shape=tuple(shape), offset=view.offset + offset, clips=tuple(rest)))


def _bytes(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)
