"""From a program and a schedule to the text of a candidate file."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.builtin import reference
from agent.builtin.fusion import Region, Unit, fuse, operands
from agent.builtin.host import Host, fresh_results, in_place_outputs, needed_in_python
from agent.builtin.language import Ask, Kernel, Language, environment
from agent.builtin.naming import attention_comment, comment, description, kernel_name, unique
from agent.builtin.plan import Plan, plan
from agent.builtin.program import (
    Attention,
    Compute,
    Library,
    Operand,
    Program,
    Reduce,
    View,
    reading,
    slots,
)
from agent.builtin.schedule import GRAPH_KNOBS, Schedule

_TEMPLATES = Path(__file__).parent / "templates"  # of all languages


@dataclass(frozen=True)
class Rendered:
    source: str
    schedule: Schedule  # every knob that matters, at the value used
    kernels: tuple[str, ...]  # names


@dataclass(frozen=True)
class _Entry:
    """A kernel in the file, with what is said of it."""

    kernel: Kernel
    prefix: str  # of its knobs
    description: str
    comment: str


class NothingToFuse(Exception):  # noqa: N818 - a property of the graph, not a fault
    """All of the graph is library calls."""


def render(program: Program, source: str, schedule: Schedule, language: Language) -> Rendered:
    """The candidate for `program`, which was traced from `source`.

    It has no kernel where everything is a library call, other than the reference's.
    Raises NothingToFuse where they are the reference's.
    """
    units = fuse(program, apart=schedule.get("fuse", "all") == "apart")
    chosen = bool(program.choices) and any(isinstance(unit, Library) and unit.order for unit in units)
    if not chosen and all(isinstance(unit, Library) for unit in units):
        raise NothingToFuse
    return _Rendering(program, source, schedule, units, language).run()


class _Rendering:
    def __init__(
        self,
        program: Program,
        source: str,
        schedule: Schedule,
        units: Sequence[Unit],
        language: Language,
    ) -> None:
        self.program = program
        self.schedule = schedule
        self.units = units
        self.language = language
        self.reference = reference.read(source, program.graph.constructor)
        self.host = Host(program, set(self.reference.names), language.placement(program))
        self.python = needed_in_python(program)
        self.fresh = fresh_results(units) - self.python
        self.placed = program.placed
        self.used = {
            knob: schedule.get(knob, values[0])
            for knob, values in GRAPH_KNOBS.items()
            if knob in language.graph_knobs
        }
        self.used |= program.choices
        self.entries: dict[Hashable, _Entry] = {}
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
            elif isinstance(unit, Attention):
                self.attention(unit)
            else:
                self.region(unit, index)
        self.host.finish()
        return self.fill()

    def region(self, region: Region, index: int) -> None:
        """Adds the kernel of a region, unless there is one that does the same, and its call."""
        left = region.recurrence.results if region.recurrence is not None else self.placed
        outputs = [
            s.name
            for s in region.statements
            if s.name in left or s.name in self.python or self.readers.get(s.name, set()) - {index}
        ]
        planned = plan(region, self.program, outputs)
        twin = _identity(planned, self.in_place(planned, index))
        entry = self.entries.get(twin)
        prefix, ask = self.knobs(entry)
        planned = self.language.replanned(planned, self.program, ask)
        in_place = self.in_place(planned, index)
        if in_place and ask("in_place", "on") == "off":
            in_place = {}
        values, pointers = self.parameters((a.base for a in planned.accesses.values()), planned.outputs)
        for name in planned.outputs:
            if name in in_place:
                self.host.names[name] = self.host.names[in_place[name]]
                values.append(self.host.names[name])
            else:
                values.append(self.host.allocated(left[name].base if name in left else name))
        if entry is None:
            title = self.title(kernel_name(region))
            kernel = self.language.kernel(title, planned, self.program, pointers, frozenset(in_place), ask)
            text = comment(planned, kernel.manner)
            entry = self.entries[twin] = _Entry(kernel, prefix, description(region), text)
        self.host.lines += self.language.call(entry.kernel, values)

    def attention(self, statement: Attention) -> None:
        """The same for an attention."""
        bases = dict.fromkeys(view.base for view in operands(statement, self.program))
        order = {base: str(number) for number, base in enumerate(bases)}
        read = [replace(o, base=order[o.base]) for o in slots(statement) if isinstance(o, View)]
        twin = reading(replace(statement, name=""), read), tuple(self.program.dtypes[b] for b in bases)
        entry = self.entries.get(twin)
        prefix, ask = self.knobs(entry)
        values, pointers = self.parameters(bases, [statement.name])
        values.append(self.host.allocated(statement.name))
        if entry is None:
            kernel = self.language.attention(
                self.title("attention_kernel"), statement, self.program, pointers, ask
            )
            text = attention_comment(statement)
            entry = self.entries[twin] = _Entry(kernel, prefix, "attention, with a running softmax", text)
        self.host.lines += self.language.call(entry.kernel, values)

    def knobs(self, entry: _Entry | None) -> tuple[str, Ask]:
        """Those of a kernel, which is the next one if it is not there yet."""
        prefix = entry.prefix if entry else f"k{len(self.entries)}"
        return prefix, lambda knob, default: self.knob(f"{prefix}.{knob}", default)

    def parameters(self, read: Iterable[str], outputs: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Names in `forward` of what a kernel reads, and names of its parameters, also of its outputs."""
        externals = dict.fromkeys(read)
        values = [self.host.value(base) for base in externals]
        pointers: dict[str, str] = {}
        taken = set(self.language.reserved)
        for base, value in zip(externals, values, strict=True):
            pointers[base] = unique(re.sub(r"\W+", "_", value.removeprefix("self.")).strip("_"), taken)
        for name in outputs:
            pointers[name] = unique(f"{name}_out", taken)
        return values, pointers

    def title(self, name: str) -> str:
        """What a new kernel is called."""
        found = unique(name, self.host.taken | self.language.reserved)
        self.host.taken.add(found)
        return found

    def in_place(self, planned: Plan, index: int) -> dict[str, str]:
        return in_place_outputs(planned, index, self.fresh, self.readers, self.program)

    def knob(self, name: str, default: str) -> str:
        value = self.schedule.get(name, default)
        self.used[name] = value
        return value

    # The file.

    def fill(self) -> Rendered:
        entries = list(self.entries.values())
        if not entries:
            self.used = dict(self.program.choices)
        text = (
            environment(self.language.folder, _TEMPLATES)
            .get_template("file.py.j2")
            .render(
                kernels=[
                    {
                        "name": e.kernel.name,
                        "description": e.description,
                        "comment": [e.comment, *self.knobs_of(e.prefix)],
                        "text": e.kernel,
                    }
                    for e in entries
                ],
                library=self.library(),
                schedule={k: v for k, v in self.used.items() if "." not in k},
                imports=self.imports(),
                reference=self.reference,
                constants=self.host.constants,
                forward=self.host.lines,
                **self.language.context([e.kernel for e in entries], self.used),
            )
        )
        names = tuple(e.kernel.name for e in entries)
        return Rendered(text, Schedule.from_dict(self.used), names)

    def knobs_of(self, prefix: str) -> list[str]:
        """What the schedule says of a kernel, in a line."""
        own = (f"{k.partition('.')[2]}={v}" for k, v in self.used.items() if k.startswith(f"{prefix}."))
        knobs = ", ".join(own)
        return [f"Schedule: {knobs}."] if knobs else []

    def library(self) -> list[str]:
        """The operators left to torch."""
        ops = [u.node.op.split(".") for u in self.units if isinstance(u, Library)]
        return list(dict.fromkeys(parts[1] for parts in ops if len(parts) > 1))

    def imports(self) -> list[str]:
        lines = {*self.reference.imports, "import torch", *self.language.imports}
        if any("F." in line for line in self.host.lines):
            lines.add("import torch.nn.functional as F")
        return sorted(lines, key=lambda line: (line.startswith("from"), line))


def _identity(planned: Plan, in_place: dict[str, str]) -> Hashable:
    """What two regions have in common when one kernel serves both."""
    order = {s.name: i for i, s in enumerate(planned.region.statements)}
    bases = dict.fromkeys(a.base for a in planned.accesses.values())
    order.update({base: -1 - i for i, base in enumerate(bases)})

    def anonymous(view: Operand | None) -> Hashable:
        return replace(view, base=str(order[view.base])) if isinstance(view, View) else repr(view)

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
        steps = recurrence.steps, tuple((order[a], order[b]) for a, b in recurrence.becomes.items())
    left = tuple((order[name], replace(to, base="")) for name, to in planned.results.items())
    outputs = tuple(order[name] for name in planned.outputs)
    written = tuple((order[a], order[b]) for a, b in in_place.items())
    return tuple(statements), dtypes, outputs, written, steps, left
