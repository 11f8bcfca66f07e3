"""Ranges of free sizes for which a candidate is right: every element that it reads and writes is there.

x[:, 1:] of [rows, length] begins at element 1 and has length - 1 in a row, for any length from 1 on. A table
of 64 positions, of which the first `length` are read, has them up to a length of 64, and x[:, :8] needs 8 at
least. What holds for no range of each size on its own is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations

from kernelwright.agent.builtin.codegen.render import Forward
from kernelwright.agent.builtin.ir.graph import Arg, Graph, Node, Ref
from kernelwright.agent.builtin.ir.program import Attention, Program, View, slots
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.builtin.scheduling.launches import Launch, places
from kernelwright.kernelbench.free_sizes.size import Limits, is_free, terms_of

_WHOLE = 1 << 62  # an end of a slice, or more, that stands for the end of any axis


@dataclass
class Ranges:
    """The least and the most that free sizes may be, as far as they are known; the least is 1 else."""

    least: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, limits: Limits) -> Ranges:
        least = {name: first for name, (first, _) in limits.items()}
        return cls(least, {name: last for name, (_, last) in limits.items() if last is not None})

    @property
    def limits(self) -> Limits:
        """Limits of the sizes that may not be anything from 1 on."""
        found = {**self.least, **self.most}
        narrow = [name for name in found if self.least.get(name, 1) > 1 or name in self.most]
        return {name: (self.least.get(name, 1), self.most.get(name)) for name in narrow}

    def hold(self, *sizes: int) -> bool:
        """Narrow the ranges so that sizes are 0 or more; True where that is possible."""
        return all(self._hold(size) for size in sizes)

    def _hold(self, size: int) -> bool:
        terms = terms_of(size)
        names = [names for names in terms if names]
        if len(names) == 1 and len(names[0]) == 1:
            (name,), factor, first = names[0], terms[names[0]], terms.get((), 0)
            if factor > 0:
                self.least[name] = max(self.least.get(name, 1), -(first // factor))
            else:
                self.most[name] = min(self.most.get(name, first // -factor), first // -factor)
            return self.least.get(name, 1) <= self.most.get(name, math.inf)
        return self.never_negative(size)

    def never_negative(self, size: int) -> bool:
        """Return True if a size is 0 or more whatever the free sizes are.

        Each is its least and something: if that leaves no negative coefficient, there is no negative value.
        """
        found: dict[tuple[str, ...], int] = {}
        for names, factor in terms_of(size).items():
            for count in range(len(names) + 1):
                for kept in combinations(range(len(names)), count):
                    others = (self.least.get(n, 1) for place, n in enumerate(names) if place not in kept)
                    key = tuple(names[place] for place in kept)
                    found[key] = found.get(key, 0) + factor * math.prod(others)
        return all(factor >= 0 for factor in found.values())


def hold_slices(graph: Graph, ranges: Ranges) -> None:
    """Narrow the ranges so that no slice is cut short by the end of its axis."""
    for node in graph.nodes:
        if node.op == "aten.slice.Tensor" and not _is_whole(node, graph, ranges):
            raise Untraceable(f"{node.name} is cut short by some of the free sizes")


def _is_whole(node: Node, graph: Graph, ranges: Ranges) -> bool:
    given: tuple[Arg, ...] = (*node.args, *(None, 0, None, None, 1)[len(node.args) :])
    source, dim, start, end, step = given
    assert isinstance(source, Ref) and isinstance(dim, int)
    size, left = graph.metas()[source.ref].shape[dim], node.meta.shape[dim]
    if not is_free(size, left):
        return True
    begin = 0 if start is None else start
    assert isinstance(begin, int)
    if not ranges.never_negative(begin):
        begin += size
    stop = begin + left
    if isinstance(end, int) and end < _WHOLE and not _same(end, stop) and not _same(end + size, stop):
        # An end that lies behind the axis, for all of its lengths.
        behind = _same(size, stop) and ranges.hold(end - size)
        return behind and step == 1 and ranges.hold(begin, left)
    return step == 1 and ranges.hold(begin, left, size - stop)


def _same(size: int, other: int) -> bool:
    """Return True if two sizes are equal whatever the free ones are."""
    return size == other and not is_free(size - other)


def hold_kernels(forward: Forward, ranges: Ranges) -> None:
    """Narrow the ranges so that no kernel reads or writes outside its values."""
    program, placed = forward.program, forward.program.placed
    for launch in forward.launches:
        if isinstance(launch, Launch):
            for call in launch.calls:
                region = call.plan.region
                edges = [edge for *_, clip in region.space.clips for edge in vars(clip).values()]
                if is_free(*edges):
                    raise Untraceable("a window reaches over an edge that depends on the free sizes")
                if region.recurrence is not None and is_free(call.plan.row_length):
                    raise Untraceable("a loop hands on rows that are as long as a free size")
                steps = region.recurrence.steps if region.recurrence is not None else 1
                written = set(call.plan.results.values())
                for at in places(call.plan) if not edges else ():
                    shape, strides = (*call.plan.sizes, steps), (*at.strides, at.move)
                    base = placed[at.base].base if at in written and at.base in placed else at.base
                    _hold_view(View(base, shape, strides, at.offset, table=at.table), program, ranges)
        elif isinstance(launch, Attention):
            for operand in slots(launch):
                assert isinstance(operand, View)
                _hold_view(operand, program, ranges)


def _hold_view(view: View, program: Program, ranges: Ranges) -> None:
    whole = program.shapes[view.base]
    if not is_free(*view.shape, *view.strides, view.offset, view.table, *whole):
        return  # as in a kernel for one set of sizes
    sizes = [size for size in (*view.shape, *whole) if is_free(size)]
    inside = ranges.hold(*sizes)
    first = last = view.offset
    for size, stride in zip(view.shape, view.strides, strict=True):
        if ranges.never_negative(stride):
            last += (size - 1) * stride
        else:
            first += (size - 1) * stride
    if view.table:  # where an index leads to is checked when it is known
        inside &= not is_free(last, *whole)
    else:
        inside &= ranges.hold(first, math.prod(whole) - 1 - last)
    if not inside:
        raise Untraceable(f"{view.base} has not all of the elements that are read for some free sizes")
