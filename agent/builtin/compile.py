"""The builtin compiler, from a graph of ATen calls to a candidate file: the one place that names its passes.

Graph     what `torch.export` traces, on static shapes                   frontend/trace.py
Graph     spelled-out attention as one call                              passes/match_attention.py
Program   computations over views of values, and calls of the library   lowering/lower.py
Program   the same with less work: `PASSES`, in this order               passes/
Units     regions that share a kernel, library calls                     fusion/
Launches  which kernels are called, how often, over which memory         scheduling/launches.py
Plans     the loops of each kernel                                       scheduling/loop_nest.py
Rendered  kernels in a language, and the Python that calls them          codegen/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from kernelwright.agent.builtin.codegen.backend import Language
from kernelwright.agent.builtin.codegen.render import Forward, Rendered, render
from kernelwright.agent.builtin.fusion.recompute import fuse_recomputing
from kernelwright.agent.builtin.ir.graph import ROW_BLOCKS, Graph
from kernelwright.agent.builtin.ir.program import Library, Program
from kernelwright.agent.builtin.ir.space import Region
from kernelwright.agent.builtin.ir.uses import Unit, Uses, statements_of, stored
from kernelwright.agent.builtin.lowering.default_layout import preferred_layout
from kernelwright.agent.builtin.lowering.lower import lower
from kernelwright.agent.builtin.passes.batch_linear import batch_linear
from kernelwright.agent.builtin.passes.concat import concat
from kernelwright.agent.builtin.passes.cse import cse
from kernelwright.agent.builtin.passes.dead_code import dead_code
from kernelwright.agent.builtin.passes.match_attention import with_fused_attention
from kernelwright.agent.builtin.passes.one_hot import one_hot
from kernelwright.agent.builtin.passes.permute_producers import permute_producers
from kernelwright.agent.builtin.passes.placed_scans import placed_scans
from kernelwright.agent.builtin.passes.prologues import prologues
from kernelwright.agent.builtin.passes.repeated import repeated
from kernelwright.agent.builtin.passes.reroll import reroll
from kernelwright.agent.builtin.passes.short_rows import short_rows
from kernelwright.agent.builtin.passes.split_reductions import split_reductions
from kernelwright.agent.builtin.passes.split_scans import split_scans
from kernelwright.agent.builtin.passes.split_values import split_values
from kernelwright.agent.builtin.schedule import DEFAULT, GRAPH_KNOBS, Schedule
from kernelwright.agent.builtin.scheduling.launches import launches

PASSES: tuple[Callable[[Program], Program], ...] = (
    reroll,  # loops that tracing has unrolled become loops again
    cse,  # common subexpressions
    batch_linear,  # linear layers of all steps as one product
    split_values,  # values that are read in parts are computed in parts
    concat,  # concatenations are computed in place
    split_values,  # again: their pieces may be parts of values
    one_hot,  # sums of rows with one number are that number
    dead_code,  # what nobody reads is not computed
    repeated,  # cheap values that are read again and again are computed there
    cse,  # again: pieces, and readers, may ask for the same
    permute_producers,  # producers write in their reader's order of axes
    short_rows,  # neighbouring short rows in one vector
)

# Called with the name of a step and the form after it: for `dump`.
Watch: TypeAlias = Callable[[str, object], None]


def nobody(step: str, form: object) -> None: ...


class NothingToFuse(Exception):  # noqa: N818 - a property of the graph, not a fault
    """Every operation of the graph is a library call. `choices`: knobs that matter, at the values used."""

    def __init__(self, choices: dict[str, str]) -> None:
        super().__init__()
        self.choices = choices


def compile_graph(
    graph: Graph, source: str, schedule: Schedule, language: Language, watch: Watch = nobody
) -> Rendered:
    """Compile `graph`, which was traced from `source`, to a candidate.

    Where the forward itself could not be traced, the graph has parts, each compiled alone. A candidate has no
    kernel where everything is a library call, other than the reference's. Raises Untraceable, and
    NothingToFuse where the calls are the reference's. `watch` is called with each form in turn.
    """
    schedule = with_layout(graph, schedule)
    forwards, idle = scheduled(graph, schedule, language, watch)
    return render(forwards, graph, source, schedule, language, idle)


def with_layout(graph: Graph, schedule: Schedule) -> Schedule:
    """Return the schedule with the layout of images that a graph begins with, where it has none."""
    if "layout" in schedule.values:
        return schedule
    return schedule.changed({"layout": preferred_layout(_parts(graph).values())})


def scheduled(
    graph: Graph, schedule: Schedule, language: Language, watch: Watch = nobody, together: bool = True
) -> tuple[list[Forward], set[str]]:
    """Return what is to be rendered, and the knobs that would change nothing of it.

    `together`: small calls may share a launch, and long reductions be split. Raises Untraceable and
    NothingToFuse.
    """
    among = language.multiprocessors if together else 0
    programs = {path: program_of(part, schedule, watch, among) for path, part in _parts(graph).items()}
    forwards = []
    fuse_matters = False
    for path, program in programs.items():
        program, units, matters = _fused(program, schedule.get("fuse", "all"), language.prologues)
        fuse_matters |= matters
        if _is_changed(program, units):
            watch("fusion", tuple(units))
            abreast = language.abreast if together else 1
            calls = launches(units, program, language.batches and together, abreast, language.joins)
            watch("scheduling", calls)
            forwards.append(Forward(path, program, units, calls))
    if not forwards:
        raise NothingToFuse({k: v for program in programs.values() for k, v in program.choices.items()})
    return forwards, set() if fuse_matters else {"fuse"}


def _parts(graph: Graph) -> Mapping[str, Graph]:
    return graph.parts or {"": graph}


def program_of(
    graph: Graph, schedule: Schedule = DEFAULT, watch: Watch = nobody, multiprocessors: int = 0
) -> Program:
    """Lower a graph to a program and run all passes on it.

    Long reductions are split among `multiprocessors`, if there are any. Raises Untraceable.
    """
    watch("graph", graph)
    matched = with_fused_attention(graph)
    if matched is None:
        program = lower(graph, schedule)
    else:
        apart = schedule.value("attention") == "apart"
        if not apart:
            watch("attention", matched)
        program = lower(graph if apart else matched, schedule, choices=("attention",))
    watch("lowering", program)
    for run in PASSES:
        program = run(program)
        watch(run.__name__, program)
    if multiprocessors:
        program = placed_scans(program)
        watch(placed_scans.__name__, program)
        program = _split(program, schedule, multiprocessors)
        watch(split_reductions.__name__, program)
    return program


def _split(program: Program, schedule: Schedule, multiprocessors: int) -> Program:
    """Return the program with long reductions and scans split, unless the schedule says that they are not."""
    chosen = schedule.value("split")
    most = max(int(each) for each in GRAPH_KNOBS["split"] if each != "off")

    def split(each: int) -> Program:
        scans = split_scans(program, multiprocessors * each, multiprocessors)
        return split_reductions(scans, multiprocessors * each)

    if split(most) is program:
        return program
    program.choices["split"] = chosen
    if chosen == "off":
        return program
    return dead_code(split(int(chosen)))


def _fused(program: Program, fuse: str, with_prologues: bool) -> tuple[Program, list[Unit], bool]:
    """Return the program, its units, and whether another value of the knob `fuse` would give others.

    `with_prologues`: products may compute their operands, if `fuse` is "all".
    """
    found = {
        "all": (with_prologues and _with_prologues(program)) or fuse_recomputing(program),
        "apart": fuse_recomputing(program, apart=True),
    }
    one, other = ([[s.name for s in statements_of(unit)] for unit in units] for _, units in found.values())
    return *found[fuse], one != other


def _with_prologues(program: Program) -> tuple[Program, list[Unit]] | None:
    """Return the program and its units with prologues of products; None if one had to be stored."""
    trial = prologues(program)
    if trial is program:
        return None
    trial, units = fuse_recomputing(dead_code(trial))
    uses = Uses(trial)
    regions = [unit for unit in units if isinstance(unit, Region)]
    whole = all(trial.unstored.isdisjoint(stored(region, trial, uses)) for region in regions)
    return (trial, units) if whole else None


def _is_changed(program: Program, units: Sequence[Unit]) -> bool:
    """Return True if a candidate does anything else than the reference's library calls."""
    chosen = bool(program.choices) and any(isinstance(unit, Library) and unit.order for unit in units)
    chosen |= any(isinstance(unit, Library) and unit.node.op == ROW_BLOCKS for unit in units)
    return chosen or not all(isinstance(unit, Library) for unit in units)
