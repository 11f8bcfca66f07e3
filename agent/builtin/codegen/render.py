"""Rendering of programs and a schedule to the text of a candidate file."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from kernelwright.agent.builtin.codegen.backend import Batch, Kernel, KnobReader, Language, environment
from kernelwright.agent.builtin.codegen.host import BLOCK, HostCode
from kernelwright.agent.builtin.codegen.naming import (
    attention_comment,
    comment,
    description,
    kernel_name,
    unique,
)
from kernelwright.agent.builtin.frontend import reference
from kernelwright.agent.builtin.ir.graph import ROW_BLOCKS, SUBMODULE, Graph
from kernelwright.agent.builtin.ir.names import attribute
from kernelwright.agent.builtin.ir.program import Attention, Library, Program, View, reading, slots
from kernelwright.agent.builtin.ir.space import Region
from kernelwright.agent.builtin.ir.uses import Unit, operands
from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, Schedule, up_to
from kernelwright.agent.builtin.scheduling.in_place import in_place_outputs
from kernelwright.agent.builtin.scheduling.launches import HorizontalFusion, Launch, beginning, places
from kernelwright.agent.builtin.scheduling.loop_nest import Plan
from kernelwright.kernelbench.free_sizes.size import Limits

_TEMPLATES = Path(__file__).parent / "templates"  # of all languages


@dataclass(frozen=True)
class Rendered:
    source: str
    schedule: Schedule  # every knob that matters, at the value used
    alternatives: Mapping[str, tuple[str, ...]]  # to it, of knobs that have fewer than are legal
    kernels: tuple[str, ...]  # names


@dataclass(frozen=True)
class _Entry:
    """Kernel in the file, with its description."""

    kernel: Kernel
    prefix: str  # of its knobs
    description: str
    comment: str
    beside: bool = False  # whether another function launches it


@dataclass(frozen=True)
class Forward:
    """A forward to be written: that of the whole, whose path is empty, or of the submodule at `path`.

    `inner`: it is a function that the whole's loop over blocks of rows calls.
    """

    path: str
    program: Program
    units: Sequence[Unit]
    launches: Sequence[Launch | HorizontalFusion | Attention | Library]
    inner: bool = False


def render(
    forwards: Sequence[Forward],
    graph: Graph,
    source: str,
    schedule: Schedule,
    language: Language,
    idle: Set[str] = frozenset(),
    limits: Limits = MappingProxyType({}),
) -> Rendered:
    """Return the candidate for `graph`, which was traced from `source`.

    `idle`: knobs that would change nothing; `limits`: those of the graph's free sizes.
    """
    file = _File(graph, source, schedule, language, idle, limits)
    for forward in forwards:
        file.add(_Forward(forward, file))
    return file.fill()


class _Forward:
    """One forward, of the whole or of a part: torch calls and launches of the file's kernels."""

    def __init__(self, forward: Forward, file: _File) -> None:
        self.path, self.program, self.units = forward.path, forward.program, forward.units
        self.launches = forward.launches
        self.file = file
        self.language = file.language
        self.entries = file.entries
        self.inner = forward.inner
        self.host = HostCode(self.program, file.taken, file.language.placement(self.program), self.inner)
        recurrences = [unit.recurrence for unit in self.units if isinstance(unit, Region) and unit.recurrence]
        self.placed = dict(self.program.placed)  # what is written into part of something
        for recurrence in recurrences:
            self.placed.update(recurrence.results)

    def run(self) -> None:
        self.host.start(bool(self.path), {} if self.inner else self.file.limits)
        for unit in self.launches:
            if isinstance(unit, Library):
                self.host.library(unit.name, unit.node, unit.order)
            elif isinstance(unit, Attention):
                self.attention(unit)
            else:
                self.launch(unit)
        self.host.finish()

    def launch(self, launch: Launch | HorizontalFusion) -> None:
        if isinstance(launch, Launch):
            entry, arguments = self.prepare(launch)
            self.host.lines += self.language.call(entry.kernel, arguments)
            return
        prepared = [self.prepare(one, beside=True) for one in launch.launches]
        kernels = tuple(entry.kernel for entry, _ in prepared)
        group = self.file.groups.get(tuple(kernel.name for kernel in kernels))
        if group is None:
            work = sum(call.plan.region.space.numel for one in launch.launches for call in one.calls)
            group = self.file.group(kernels, work)
        given = [argument for _, arguments in prepared for argument in arguments]
        self.host.lines += self.language.call(group.kernel, given)

    def prepare(self, launch: Launch, beside: bool = False) -> tuple[_Entry, list[str]]:
        """Return the kernel of a launch, a new one unless another does the same, and its arguments."""
        calls = launch.calls
        read = list(zip(*(call.reads for call in calls), strict=True))
        written = list(zip(*([self.held(name) for name in c.plan.outputs] for c in calls), strict=True))
        several = tuple(len(set(bases)) > 1 for bases in (*read, *written))
        moves = launch.moving if len(calls) == 1 else ()  # of several calls the kernel has a table
        begins = tuple(
            tuple("" if number in moves else at for number, at in enumerate(call.offsets)) for call in calls
        )
        key = launch.kernel, begins, several, beside, self.inner
        entry = self.entries.get(key)
        prefix, ask = self.file.knobs(entry)
        planned = self.language.replanned(calls[0].plan, self.program, ask)
        in_place: Mapping[str, str] = {}
        if len(calls) == 1:
            in_place = in_place_outputs(planned, calls[0].free, self.program)
        if in_place and ask("in_place", "on") == "off":
            in_place = {}
        arguments = [self.argument([self.host.value(base) for base in bases]) for bases in read]
        for name, bases in zip(planned.outputs, written, strict=True):
            if name in in_place:
                self.host.names[name] = self.host.names[in_place[name]]
                arguments.append(self.host.names[name])
            elif len(set(bases)) == len(bases) > 1 and name == bases[0]:
                arguments.append(self.host.allocated_each(bases))
            else:
                arguments.append(self.argument([self.host.allocated(base) for base in bases]))
        if entry is None:
            entry = self.entry(launch, planned, in_place, several, beside, prefix, ask)
            self.entries[key] = entry
        if len(calls) == 1:
            arguments += [str(calls[0].offsets[number]) for number in launch.moving]
        arguments += entry.kernel.free
        return entry, arguments

    def held(self, name: str) -> str:
        """Return the tensor that an output is written to, or into."""
        return self.placed[name].base if name in self.placed else name

    def argument(self, values: Sequence[str]) -> str:
        return values[0] if len(set(values)) == 1 else self.host.listed(values)

    def entry(
        self,
        launch: Launch,
        planned: Plan,
        in_place: Mapping[str, str],
        several: Sequence[bool],
        beside: bool,
        prefix: str,
        ask: KnobReader,
    ) -> _Entry:
        """Return the kernel of a launch; of which values and outputs each call has its own says `several`."""
        pointers, taken = self.parameters(launch.calls[0].reads, planned.outputs)
        moving = [places(planned)[number] for number in launch.moving]
        begins = {access: unique(f"{pointers[access.base]}_at", taken) for access in moving}
        batch = Batch(
            len(launch.calls),
            frozenset(base for base, own in zip(pointers, several, strict=True) if own),
            {
                at: tuple(call.offsets[number] for call in launch.calls)
                for number, at in zip(launch.moving, begins.values(), strict=True)
            },
            beside,
        )
        kernel = self.language.kernel(
            self.file.title(kernel_name(planned.region, self.program.roles)),
            beginning(planned, begins),
            self.program,
            pointers,
            frozenset(in_place),
            ask,
            batch,
        )
        said = description(planned.region), comment(planned, kernel.loop_style)
        return _Entry(kernel, prefix, *said, beside)

    def attention(self, statement: Attention) -> None:
        """Add the kernel of an attention, and its call."""
        bases = list(dict.fromkeys(view.base for view in operands(statement, self.program)))
        order = {base: str(number) for number, base in enumerate(bases)}
        read = [replace(o, base=order[o.base]) for o in slots(statement) if isinstance(o, View)]
        key = reading(replace(statement, name=""), read), tuple(self.program.dtypes[base] for base in bases)
        entry = self.entries.get(key)
        prefix, ask = self.file.knobs(entry)
        arguments = [*map(self.host.value, bases), self.host.allocated(statement.name)]
        if entry is None:
            pointers, _ = self.parameters(bases, [statement.name])
            title = self.file.title("attention_kernel")
            kernel = self.language.attention(title, statement, self.program, pointers, ask)
            said = "attention, with a running softmax", attention_comment(statement)
            entry = self.entries[key] = _Entry(kernel, prefix, *said)
        arguments += entry.kernel.free
        self.host.lines += self.language.call(entry.kernel, arguments)

    def parameters(self, reads: Sequence[str], outputs: Sequence[str]) -> tuple[dict[str, str], set[str]]:
        """Names of a kernel's parameters, by what it reads and writes; and all names that are taken."""
        pointers: dict[str, str] = {}
        taken = {*self.language.reserved, *self.program.graph.free}
        for base in reads:
            value = self.host.value(base).removeprefix("self.")
            pointers[base] = unique(re.sub(r"\W+", "_", value).strip("_"), taken)
        for name in outputs:
            pointers[name] = unique(f"{name}_out", taken)
        return pointers, taken

    @property
    def function(self) -> str:
        """Name of a part's forward."""
        return re.sub(r"\W+", "_", self.path)

    @property
    def library(self) -> list[str]:
        """The operators left to torch."""
        own = (SUBMODULE, ROW_BLOCKS)
        libraries = (u for u in self.units if isinstance(u, Library) and u.node.op not in own)
        ops = [u.node.op.split(".") for u in libraries]
        return [parts[1] for parts in ops if len(parts) > 1]


class _File:
    """The kernels of a candidate, and the forwards that call them."""

    def __init__(
        self,
        graph: Graph,
        source: str,
        schedule: Schedule,
        language: Language,
        idle: Set[str],
        limits: Limits,
    ) -> None:
        """`idle`: knobs that would change nothing; `limits`: those of free sizes."""
        self.graph = graph
        self.limits = limits
        self.schedule = schedule
        self.language = language
        self.reference = reference.read(source, graph.constructor, whole=bool(graph.parts))
        self.taken = set(self.reference.names)
        self.entries: dict[Hashable, _Entry] = {}
        self.groups: dict[tuple[str, ...], _Entry] = {}  # what launches several kernels, by their names
        self.forwards: list[_Forward] = []
        self.choices: dict[str, str] = {}
        self.alternatives: dict[str, tuple[str, ...]] = {}
        self.used = {
            knob: schedule.get(knob, values[0])
            for knob, values in GRAPH_KNOBS.items()
            if knob in language.graph_knobs - idle
        }

    def add(self, forward: _Forward) -> None:
        if forward.path:
            self.taken.add(forward.function)
        self.choices |= forward.program.choices
        self.used |= forward.program.choices
        fewer = self.language.choices
        self.alternatives |= {knob: fewer[knob] for knob in forward.program.choices if knob in fewer}
        self.forwards.append(forward)
        forward.run()

    def title(self, name: str) -> str:
        """Name of a new kernel, taken from now on."""
        found = unique(name, self.taken | self.language.reserved)
        self.taken.add(found)
        return found

    def group(self, kernels: tuple[Kernel, ...], work: int) -> _Entry:
        """Entry of a kernel that launches several, which do not need each other's results."""
        names = tuple(kernel.name for kernel in kernels)
        title = self.title(f"{names[0]}_and_{len(names) - 1}_more")
        said = f"launches {', '.join(dict.fromkeys(names))}", "Small kernels side by side."
        self.groups[names] = _Entry(self.language.together(title, kernels, work), "", *said)
        return self.groups[names]

    def knobs(self, entry: _Entry | None) -> tuple[str, KnobReader]:
        """Prefix and reader of a kernel's knobs; for None, of the next kernel's."""
        prefix = entry.prefix if entry else f"k{len(self.entries)}"
        return prefix, lambda knob, default, most=None: self.knob(f"{prefix}.{knob}", default, most)

    def knob(self, name: str, default: str, most: int | None) -> str:
        value = self.schedule.get(name, default)
        if most is not None:
            among = up_to(name, most)
            value = value if value in among else among[-1]
            if len(among) == 1:
                return value
            self.alternatives[name] = among
        self.used[name] = value
        return value

    def fill(self) -> Rendered:
        entries = list(self.entries.values())
        if not entries:
            self.used = self.choices
        hosts = [forward.host for forward in self.forwards]
        called = set().union(*(host.called for host in hosts))
        text = (
            environment(self.language.folder, _TEMPLATES)
            .get_template("file.py.j2")
            .render(
                kernels=[
                    {
                        "name": e.kernel.name,
                        "description": e.description,
                        "comment": [e.comment, *(self.knobs_of(e.prefix) if e.prefix else [])],
                        "text": e.kernel,
                        "beside": e.beside,
                    }
                    for e in (*entries, *self.groups.values())
                ],
                fused=len(entries),
                library=list(dict.fromkeys(name for forward in self.forwards for name in forward.library)),
                checks="checked" in called,
                free=self.graph.free,
                looks_up="indices" in called,
                left=self.left(),
                schedule={k: v for k, v in self.used.items() if "." not in k},
                imports=self.imports(functional="F" in called),
                reference=self.reference,
                given=", ".join(self.graph.arguments),
                constants=[constant for host in hosts for constant in host.constants],
                parts=[
                    {
                        "path": forward.path,
                        "function": forward.function,
                        "arguments": ", ".join(("self", *forward.program.graph.arguments)),
                        "lines": forward.host.lines,
                        "submodule": attribute(forward.path),
                    }
                    for forward in self.forwards
                    if forward.path
                ],
                blocks=[
                    {"arguments": ", ".join(forward.program.graph.arguments), "lines": forward.host.lines}
                    for forward in self.forwards
                    if forward.inner
                ],
                block=BLOCK,
                forward=hosts[0].lines,
                **self.language.context([e.kernel for e in entries], self.used),
            )
        )
        names = tuple(e.kernel.name for e in entries)
        return Rendered(text, Schedule.from_dict(self.used), self.alternatives, names)

    def knobs_of(self, prefix: str) -> list[str]:
        """Line with the values of a kernel's knobs; no line if it has none."""
        own = (f"{k.partition('.')[2]}={v}" for k, v in self.used.items() if k.startswith(f"{prefix}."))
        knobs = ", ".join(own)
        return [f"Schedule: {knobs}."] if knobs else []

    def left(self) -> dict[str, list[str]]:
        """Submodules that are left to torch, by the reason."""
        found: dict[str, list[str]] = {}
        for path, reason in self.graph.left.items():
            found.setdefault(reason, []).append(path or "forward itself")
        return found

    def imports(self, functional: bool) -> list[str]:
        found = {*self.reference.imports, "import torch", *self.language.imports}
        if functional:
            found.add("import torch.nn.functional as F")
        if self.graph.parts:
            found.add("import functools")
        lines = sorted(found, key=lambda line: (line.startswith("from"), line))
        python = [line for line in lines if re.split(r"[\s.]", line)[1] in sys.stdlib_module_names]
        others = [line for line in lines if line not in python]
        return [*python, "", *others] if python else others
