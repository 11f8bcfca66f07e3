"""From a program and a schedule to the text of a candidate file."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.builtin import reference
from agent.builtin.cpp import ITEMSIZE
from agent.builtin.emit import Emitter, Kernel, Knobs
from agent.builtin.emit_columns import ColumnEmitter
from agent.builtin.emit_rows import RowEmitter
from agent.builtin.emit_tiles import TileEmitter
from agent.builtin.fusion import Region, fuse, operands
from agent.builtin.headers import TEMPLATES, helpers
from agent.builtin.host import Host, fresh_results, in_place_outputs, needed_in_python
from agent.builtin.naming import comment, description, kernel_name, unique
from agent.builtin.plan import KEPT_LIMIT, Plan, plan
from agent.builtin.program import Compute, Library, Operand, Program, Reduce, View
from agent.builtin.schedule import GRAPH_KNOBS, Schedule, legal

SMALL = 1 << 15  # elements below which a parallel region costs more than it saves
PREFETCH_LIMIT = 1 << 16  # elements of a row, over all inputs, that are fetched ahead
DEAR = 12  # cost per element, in additions, that hides the memory by itself
LINE_BYTES = 64
_TILE = 64  # elements of a tile's row
_LEAST_BLOCKS = 8  # of columns, which threads share


@dataclass(frozen=True)
class Rendered:
    source: str
    schedule: Schedule  # every knob that matters, at the value used
    kernels: tuple[str, ...]  # names


@dataclass(frozen=True)
class _Entry:
    """A kernel in the file, with what it was made from."""

    kernel: Kernel
    plan: Plan
    prefix: str  # of its knobs


class NothingToFuse(Exception):  # noqa: N818 - a property of the graph, not a fault
    """All of the graph is library calls."""


def render(program: Program, source: str, schedule: Schedule, language: str = "cpp") -> Rendered:
    """The candidate for `program`, which was traced from `source`.

    It has no kernel where everything is a library call, on images in another layout than the reference's.
    Raises NothingToFuse where that is the reference's too.
    """
    units = fuse(program, apart=schedule.get("fuse", "all") == "apart")
    if not any(isinstance(unit, Region) or unit.order for unit in units):
        raise NothingToFuse
    return _Rendering(program, source, schedule, units, language).run()


class _Rendering:
    def __init__(
        self,
        program: Program,
        source: str,
        schedule: Schedule,
        units: Sequence[Region | Library],
        language: str,
    ) -> None:
        self.program = program
        self.schedule = schedule
        self.units = units
        self.language = language
        self.reference = reference.read(source, program.graph.constructor)
        self.host = Host(program, set(self.reference.names))
        self.python = needed_in_python(program)
        self.fresh = fresh_results(units) - self.python
        self.used = {knob: schedule.get(knob, values[0]) for knob, values in GRAPH_KNOBS.items()}
        if program.layout:
            self.used["layout"] = program.layout
        else:
            del self.used["layout"]
        self.entries: dict[Hashable, _Entry] = {}
        self.titles: set[str] = set()
        self.readers: dict[str, set[int]] = {}  # of each value: the units that read it
        for index, unit in enumerate(units):
            for s in unit.statements if isinstance(unit, Region) else (unit,):
                for view in operands(s, program):
                    self.readers.setdefault(view.base, set()).add(index)

    def run(self) -> Rendered:
        self.host.start()
        for index, unit in enumerate(self.units):
            if isinstance(unit, Library):
                self.host.library(unit.name, unit.node, unit.order)
            else:
                self.region(unit, index)
        self.host.finish()
        return self.fill()

    def region(self, region: Region, index: int) -> None:
        """Adds the kernel of a region, unless there is one that does the same, and its call."""
        left = region.recurrence.results if region.recurrence is not None else {}
        outputs = [
            s.name
            for s in region.statements
            if s.name in left or s.name in self.python or self.readers.get(s.name, set()) - {index}
        ]
        planned = plan(region, self.program, outputs)
        in_place = in_place_outputs(planned, index, self.fresh, self.readers, self.program)
        twin = _identity(planned, in_place)
        entry = self.entries.get(twin)
        prefix = entry.prefix if entry else f"k{len(self.entries)}"
        freely = planned.kept and region.recurrence is None  # a recurrence keeps what it overwrites
        if freely and self.knob(f"{prefix}.keep", "on") == "off":
            planned = plan(region, self.program, outputs, keep=False)
        if in_place and self.knob(f"{prefix}.in_place", "on") == "off":
            in_place = {}
        externals = dict.fromkeys(a.base for a in planned.accesses.values())
        values = [self.host.value(base) for base in externals]
        pointers: dict[str, str] = {}
        taken: set[str] = set()
        for base, value in zip(externals, values, strict=True):
            pointers[base] = unique(re.sub(r"\W+", "_", value.removeprefix("self.")).strip("_"), taken)
        for name in planned.outputs:
            pointers[name] = unique(f"{name}_out", taken)
            if name in in_place:
                self.host.names[name] = self.host.names[in_place[name]]
                values.append(self.host.names[name])
            else:
                values.append(self.host.allocate(left[name].base if name in left else name))
        if entry is None:
            knobs = self.knobs(planned, prefix, frozenset(in_place))
            entry = _Entry(self.emit(planned, knobs, pointers), planned, prefix)
            self.entries[twin] = entry
        self.host.lines.append(f"lib.{entry.kernel.name}({', '.join(values)})")

    def emit(self, planned: Plan, knobs: Knobs, pointers: dict[str, str]) -> Kernel:
        emitters: dict[str, type[Emitter]] = {"columns": ColumnEmitter, "tiles": TileEmitter}
        emitter = emitters.get(planned.mode, RowEmitter)
        title = unique(kernel_name(planned.region), self.titles)
        return emitter(planned, self.program, knobs, pointers).kernel(title)

    # The schedule.

    def knob(self, name: str, default: str) -> str:
        value = self.schedule.get(name, default)
        self.used[name] = value
        return value

    def knobs(self, planned: Plan, prefix: str, in_place: frozenset[str]) -> Knobs:
        """The knobs of a kernel. One that cannot change it is not asked for."""
        if planned.mode == "tiles":
            default = "1" if planned.region.space.numel < SMALL else "all"
            return Knobs(_TILE, False, self.knob(f"{prefix}.threads", default) == "all", False, in_place)
        length = planned.vector_length
        block = length
        if length > 128:
            default = {"flat": "256", "rows": "4096", "columns": _column_block(planned)}[planned.mode]
            block = int(self.knob(f"{prefix}.block", default))
        if planned.mode == "columns" and planned.kept:
            block = min(block, 2048, max(KEPT_LIMIT // (planned.row_length * len(planned.kept)), 16))
        elements = [o for o in planned.outputs if planned.level(o) == "element"]
        streaming = prefetch = parallel = False
        steps = planned.region.recurrence is not None
        if elements and not steps and planned.mode != "columns" and not in_place:
            itemsize = min(ITEMSIZE[self.program.dtypes[o]] for o in elements)
            if length * itemsize % LINE_BYTES == 0 or length * itemsize >= 64 * LINE_BYTES:
                streaming = self.knob(f"{prefix}.streaming", "off") == "on"
        if not steps and _prefetchable(planned):
            default = "off" if planned.mode == "flat" and planned.cost >= DEAR else "on"
            prefetch = self.knob(f"{prefix}.prefetch", default) == "on"
        if planned.mode == "flat" or planned.rows > 1:
            default = "1" if planned.region.space.numel < SMALL else "all"
            parallel = self.knob(f"{prefix}.threads", default) == "all"
        return Knobs(block, streaming, parallel, prefetch, in_place)

    # The file.

    def fill(self) -> Rendered:
        entries = list(self.entries.values())
        chosen = helpers([word for e in entries for word in e.kernel.words], self.language)
        body = "\n".join([*chosen, *(line for e in entries for line in e.kernel.body)])
        flags = ["-funroll-loops"] if self.used["unroll"] == "on" else []
        text = (
            _environment(self.language)
            .get_template("candidate.py.j2")
            .render(
                kernels=[
                    {
                        "name": e.kernel.name,
                        "description": description(e.plan.region),
                        "comment": comment(e.plan, self.knobs_of(e.prefix)),
                        "parameters": e.kernel.parameters,
                        "body": e.kernel.body,
                    }
                    for e in entries
                ],
                library=self.library(),
                schedule={k: v for k, v in self.used.items() if "." not in k},
                imports=self.imports(),
                headers=_headers(body),
                helpers=chosen,
                vector_bits=self.used["vector"],
                layout=self.program.layout,
                flags=flags,
                reference=self.reference,
                constants=self.host.constants,
                forward=self.host.lines,
            )
        )
        if not entries:
            self.used = {"layout": self.used["layout"]}
        names = tuple(e.kernel.name for e in entries)
        return Rendered(text, Schedule.from_dict(self.used), names)

    def knobs_of(self, prefix: str) -> dict[str, str]:
        return {k.partition(".")[2]: v for k, v in self.used.items() if k.startswith(f"{prefix}.")}

    def library(self) -> list[str]:
        """The operators left to torch."""
        ops = [u.node.op.split(".") for u in self.units if isinstance(u, Library)]
        return list(dict.fromkeys(parts[1] for parts in ops if len(parts) > 1))

    def imports(self) -> list[str]:
        lines = set(self.reference.imports) | {"import torch"}
        if any("F." in line for line in self.host.lines):
            lines.add("import torch.nn.functional as F")
        return sorted(lines, key=lambda line: (line.startswith("from"), line))


@cache
def _environment(language: str) -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES / language),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is Python, not HTML
    )


def _column_block(planned: Plan) -> str:
    """Columns side by side: as many as memory likes to read in one go, if later passes find them cached."""
    passes = sum(stage.has_pass for stage in planned.stages)
    most = 1024 if passes == 1 else min(1024, KEPT_LIMIT // planned.row_length, planned.sizes[-1] // 2)
    most = min(most, planned.rows // _LEAST_BLOCKS)
    return max((v for v in legal("k0.block") if int(v) <= max(most, 64)), key=int)


def _prefetchable(planned: Plan) -> bool:
    """Whether whole rows are read, short enough for the next one to fit in the cache beside this one."""
    full = planned.full_strides()
    whole = len({a for a in planned.accesses.values() if a.strides == full})
    if planned.mode == "columns" or not whole:
        return False
    if planned.mode == "flat":
        return True
    together = list(planned.inner) == sorted(planned.inner)
    return together and planned.row_length >= 256 and whole * planned.row_length <= PREFETCH_LIMIT


def _identity(planned: Plan, in_place: dict[str, str]) -> Hashable:
    """What two regions have in common when one kernel serves both."""
    order = {s.name: i for i, s in enumerate(planned.region.statements)}
    bases = dict.fromkeys(a.base for a in planned.accesses.values())
    order.update({base: -1 - i for i, base in enumerate(bases)})

    def anonymous(view: Operand | None) -> Hashable:
        return replace(view, base=str(order[view.base])) if isinstance(view, View) else view

    statements: list[Hashable] = []
    for s in planned.region.statements:
        if isinstance(s, Compute):
            settings = tuple(sorted((k, repr(v)) for k, v in s.settings.items()))
            reads = tuple(anonymous(o) for o in s.operands)
            statements.append((s.op, settings, reads, s.shape, s.dtype, s.compute_dtype))
        else:
            index = anonymous(s.index) if isinstance(s, Reduce) else None
            statements.append((type(s), s.op, anonymous(s.operand), index, s.dims, s.shape, s.dtype))
    dtypes = tuple(a.dtype for a in planned.accesses.values())
    steps: Hashable = None
    if (recurrence := planned.region.recurrence) is not None:
        becomes = tuple((order[a], order[b]) for a, b in recurrence.becomes.items())
        left = tuple((order[name], replace(to, base="")) for name, to in planned.results.items())
        steps = (recurrence.steps, becomes, left)
    outputs = tuple(order[name] for name in planned.outputs)
    written = tuple((order[a], order[b]) for a, b in in_place.items())
    return tuple(statements), dtypes, outputs, written, steps


def _headers(body: str) -> list[str]:
    found = ["cmath", "cstdint"]
    if "std::min" in body or "std::max" in body:
        found.insert(0, "algorithm")
    if "std::memcpy" in body:
        found.append("cstring")
    if "numeric_limits" in body:
        found.append("limits")
    if "_mm" in body:
        found.append("immintrin.h")
    return found
