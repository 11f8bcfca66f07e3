"""Kernels for blocks of rows, each for any number of these, and the forward that loops over the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelwright.agent.builtin.codegen.backend import Language
from kernelwright.agent.builtin.codegen.render import Forward, Rendered, render
from kernelwright.agent.builtin.compile import (
    NothingToFuse,
    Watch,
    compile_graph,
    nobody,
    scheduled,
    with_layout,
)
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.ir.text import HALVES
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.builtin.passes.row_blocks import NAME, RowBlocks, with_row_blocks
from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, Schedule
from kernelwright.agent.builtin.sizes.free import (
    FreeGraph,
    compile_free,
    free_forms,
    some_sizes_alone,
)
from kernelwright.kernelbench.free_sizes.size import Limits

_KNOB = "blocks"
_MIB = 1 << 20
_LEAST_MIB = min(int(value) for value in GRAPH_KNOBS[_KNOB] if value != "off")


def compiled(
    graph: Graph | FreeGraph, source: str, schedule: Schedule, language: Language, watch: Watch = nobody
) -> Rendered:
    """Compile a graph, which was traced from `source`, for any values of its free sizes if it has some.

    A product of many columns that is reduced away is computed in blocks of rows, unless `schedule` says
    `blocks=off`. Raises Untraceable, and NothingToFuse.
    """
    whole = graph.graph if isinstance(graph, FreeGraph) else graph
    chosen = schedule.value(_KNOB)
    in_tiles = HALVES if schedule.value("products") == "all" else set()
    divided = with_row_blocks(whole, int(chosen) * _MIB, in_tiles) if chosen != "off" else None
    if divided is not None:
        try:
            return _in_blocks(divided, graph, source, schedule, language, watch)
        except (Untraceable, NothingToFuse):
            pass  # whole, then: its steps cannot be taken apart
    if isinstance(graph, FreeGraph):
        found = compile_free(graph, source, schedule, language, watch)
    else:
        found = compile_graph(graph, source, schedule, language, watch)
    if with_row_blocks(whole, _LEAST_MIB * _MIB, in_tiles) is None:
        return found
    return replace(found, schedule=found.schedule.changed({_KNOB: chosen}))


def _in_blocks(
    divided: RowBlocks,
    graph: Graph | FreeGraph,
    source: str,
    schedule: Schedule,
    language: Language,
    watch: Watch,
) -> Rendered:
    schedule = with_layout(divided.around, schedule)
    watch("row_blocks", divided.around)
    block = free_forms(FreeGraph(divided.block, {NAME: divided.step}, {}), schedule, language, watch)
    if block.limits:
        raise some_sizes_alone()
    first: Forward
    last: Forward
    limits: Limits = {}
    if isinstance(graph, FreeGraph):
        forms = free_forms(replace(graph, graph=divided.around), schedule, language)
        first, last, limits = forms.first, forms.last, forms.limits
    else:
        forwards, _ = scheduled(divided.around, schedule, language, together=False)
        first = last = forwards[0]

    def rendered(forwards: Sequence[Forward], schedule: Schedule) -> Rendered:
        around, inner = forwards
        around.program.choices[_KNOB] = schedule.value(_KNOB)
        both = [around, replace(inner, inner=True)]
        return render(both, around.program.graph, source, schedule, language, block.idle, limits)

    found = rendered([first, block.first], schedule)
    if found.source != rendered([last, block.last], schedule.changed(found.schedule.values)).source:
        raise some_sizes_alone()
    return found
