"""Kernels for any sizes: the reference is traced and compiled at several, and what is common is rendered.

    trace      at small sizes, primes, and at the task's own      one graph, shapes in names: `unify.py`
    schedule   at sizes near the task's own, primes again         one program and its loops, in names
    render     once, with sizes that are written as names         one file, for all sizes: `size.py`

A decision that depends on a size shows as a difference between two of these, and then there is no such file.
What is common to all reads and writes nothing outside its values: `bounds.py`. The other two are in
kernelbench/free_sizes.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from kernelwright.agent.builtin.codegen.backend import Language
from kernelwright.agent.builtin.codegen.render import Forward, Rendered, render
from kernelwright.agent.builtin.compile import Watch, nobody, scheduled, with_layout
from kernelwright.agent.builtin.ir.graph import Arg, Graph, Ref
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.agent.builtin.scheduling.launches import Launch
from kernelwright.agent.builtin.sizes.bounds import Ranges, hold_kernels, hold_slices
from kernelwright.kernelbench.free_sizes.size import FreeSize, Limits, is_free, value_at
from kernelwright.kernelbench.free_sizes.unify import Grid, SizesDecide, at
from kernelwright.kernelbench.free_sizes.unify import unified as unified_forms

T = TypeVar("T")
_OF_THE_FILE = {"self", "torch", "nn", "lib", "jit", "checked", "indices", "number", "functools"}
_COPIES = {"aten.clone.default", "aten.alias.default"}  # `contiguous` is the first of them, or nothing
_VIEWS = {f"aten.{name}.default": "view" for name in ("view", "_unsafe_view", "reshape")}
_SMALLEST = 17  # of the sizes that a reference is traced at; more than the lanes of a vector


@dataclass(frozen=True)
class FreeGraph:
    """A graph whose shapes are polynomials of free sizes, which have these values in the task."""

    graph: Graph
    sizes: Mapping[str, int]
    limits: Limits  # within which forward does the same

    @property
    def left(self) -> Mapping[str, str]:
        """Submodules that are left to torch, with the reason."""
        return self.graph.left

    def largest_input(self, points: Sequence[Mapping[str, int]]) -> tuple[int, list[int]]:
        """Return the number of the argument of forward with most elements, and these at each point.

        A point has the values of the task's constants, in the order of `sizes`. Arguments of fixed sizes do
        not count.
        """
        named = [dict(zip(self.sizes, point.values(), strict=True)) for point in points]
        inputs = [each for each in self.graph.inputs if each.kind == "user" and is_free(*each.meta.shape)]
        chosen = max(inputs, key=lambda each: math.prod(map(int, each.meta.shape)))
        shapes = [[value_at(size, values) for size in chosen.meta.shape] for values in named]
        return self.graph.arguments.index(chosen.target), [math.prod(shape) for shape in shapes]


class Tracer(Protocol):
    """A task's reference at several values of its constants."""

    def graph(self, sizes: Mapping[str, int]) -> Graph:
        """Trace the graph at these sizes. Raises Untraceable."""
        ...

    def limits(self, sizes: Mapping[str, int], free: Mapping[str, Mapping[int, str]]) -> Limits:
        """Return the limits of free sizes, which `sizes` does not show; `free`: see `frontend.limits`."""
        ...


def trace_free(tracer: Tracer, sizes: Mapping[str, int], reserved: Set[str] = frozenset()) -> FreeGraph:
    """Return the graph for any values of the constants `sizes`, which have these values in the task.

    `reserved`: words that no size may be called. Raises Untraceable where one graph does not do for all.
    """
    own = tracer.graph(sizes)
    if own.parts:
        raise Untraceable("forward itself is left to torch, whatever its sizes")
    names = _names(sizes, own, reserved)
    grid = Grid.near(dict.fromkeys(sizes, _SMALLEST), _SMALLEST)
    if all(size > 1 for size in sizes.values()):  # an axis of one element may lie anywhere
        grid = replace(grid, checks=(sizes,))
    graphs = [own if point == sizes else tracer.graph(point) for point in grid.points]
    graph = unified(graphs, grid.named(names))
    axes: dict[str, dict[int, str]] = {}
    read: set[str] = set()  # sizes that are the length of an axis
    for item in graph.inputs:
        if item.kind != "user" and is_free(*item.meta.shape):
            raise Untraceable(f"the shape of {item.target} depends on the free sizes")
        for axis, size in enumerate(item.meta.shape):
            if isinstance(size, FreeSize):
                read.add(repr(size))
                axes.setdefault(item.target, {})[item.order[axis] if item.order else axis] = repr(size)
    for name, text in names.items():
        if text not in read:
            raise Untraceable(f"{name} is not the length of an axis of an input")
    ranges = Ranges.of(tracer.limits(grid.low, axes))
    for name, size in sizes.items():
        if not ranges.least.get(names[name], 1) <= size <= ranges.most.get(names[name], size):
            raise Untraceable(f"forward does something else where {name} is {size}")
    for name, text in names.items():
        one = {**grid.low, name: 1}
        if not _alike(at(graph, {names[n]: size for n, size in one.items()}), tracer.graph(one)):
            ranges.least[text] = max(ranges.least.get(text, 1), 2)
    return FreeGraph(graph, {names[name]: size for name, size in sizes.items()}, ranges.limits)


def _alike(one: Graph, other: Graph) -> bool:
    """Return True if two graphs compute the same values of the same shapes, which may lie otherwise.

    What copies a value so that it lies otherwise, `contiguous` say, may be in one of them alone.
    """
    return _values(one) == _values(other)


def _values(graph: Graph) -> list[object]:
    """Return a graph as values, numbered in order, without copies of them."""
    names: dict[str, str] = {}

    def renamed(arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(ref=names.get(arg.ref, arg.ref))
        return tuple(map(renamed, arg)) if isinstance(arg, tuple) else arg

    nodes = []
    for node in graph.nodes:
        if node.op in _COPIES and isinstance(node.args[0], Ref):
            names[node.name] = names.get(node.args[0].ref, node.args[0].ref)
            continue
        named = {name: renamed(arg) for name, arg in node.kwargs.items()}
        metas = [(meta.shape, meta.dtype) for meta in node.outputs]
        nodes.append((_VIEWS.get(node.op, node.op), renamed(node.args), named, metas))
        names[node.name] = f"value {len(nodes)}"
    returned = [names.get(name, name) for name in graph.outputs]
    mutations = [(each.buffer, names.get(each.value, each.value)) for each in graph.mutations]
    return [nodes, returned, mutations, graph.fixed, graph.constructor]


@dataclass(frozen=True)
class FreeForms:
    """A forward for any sizes, that shows the first of some sizes as numbers, and the last of them.

    Both are written as the same text, or it would be right for some sizes alone. `idle`: see `scheduled`.
    """

    first: Forward
    last: Forward
    idle: set[str]
    limits: Limits


def compile_free(
    free: FreeGraph, source: str, schedule: Schedule, language: Language, watch: Watch = nobody
) -> Rendered:
    """Compile a graph, which was traced from `source`, to a candidate for any values of its free sizes.

    Raises Untraceable, and NothingToFuse.
    """
    schedule = with_layout(free.graph, schedule)
    forms = free_forms(free, schedule, language, watch)

    def rendered(forward: Forward, schedule: Schedule) -> Rendered:
        graph = forward.program.graph
        return render([forward], graph, source, schedule, language, forms.idle, forms.limits)

    found = rendered(forms.first, schedule)
    if found.source != rendered(forms.last, schedule.changed(found.schedule.values)).source:
        raise some_sizes_alone()
    return found


def free_forms(free: FreeGraph, schedule: Schedule, language: Language, watch: Watch = nobody) -> FreeForms:
    """Schedule a graph at several sizes. Raises Untraceable where these decide, and NothingToFuse."""
    grid = Grid.near(free.sizes, _SMALLEST, _numbers(free.graph))
    forms = []
    for number, point in enumerate(grid.points):
        graph = at(free.graph, point)
        forwards, idle = scheduled(graph, schedule, language, nobody if number else watch, together=False)
        forms.append((_numbered(forwards[0]), idle))
    (first, idle), (last, _) = (unified(forms, grid, base) for base in (0, len(forms) - 1))
    ranges = Ranges.of(free.limits)
    hold_slices(free.graph, ranges)
    hold_kernels(first, ranges)
    return FreeForms(first, last, idle, ranges.limits)


def some_sizes_alone() -> Untraceable:
    return Untraceable("a kernel would be right for some of the free sizes alone")


def _numbered(forward: Forward) -> Forward:
    """Return a forward whose kernels are numbers: what they are known by holds sizes as text."""
    numbers: dict[Hashable, int] = {}
    found = []
    for unit in forward.launches:
        if isinstance(unit, Launch):
            unit = replace(unit, kernel=numbers.setdefault(unit.kernel, len(numbers)))
        found.append(unit)
    return replace(forward, launches=found)


def unified(forms: Sequence[T], grid: Grid, base: int = 0) -> T:
    """Return the form of all of these, as `free_sizes.unify` does. Raises Untraceable where there is none."""
    try:
        return unified_forms(forms, grid, base)
    except SizesDecide as why:
        raise Untraceable(str(why)) from why


def _numbers(graph: Graph) -> set[int]:
    """Return the numbers in shapes and strides, which no size may equal coincidentally."""
    metas = graph.metas().values()
    return {int(size) for meta in metas for size in (*meta.shape, *meta.strides) if not is_free(size)}


def _names(sizes: Mapping[str, int], graph: Graph, reserved: Set[str]) -> dict[str, str]:
    """Return the free sizes' names in a candidate: the constants', unless something else is called so."""
    values = {*(item.name for item in graph.inputs), *(node.name for node in graph.nodes)}
    taken = {*_OF_THE_FILE, *reserved, *graph.arguments, *values}
    found = {}
    for name in sizes:
        text = name.lower()
        while text in taken or keyword.iskeyword(text):
            text = f"n_{text}"
        taken.add(text)
        found[name] = text
    return found
