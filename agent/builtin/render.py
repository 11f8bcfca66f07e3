"""From a program and a schedule to the text of a candidate file."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.builtin import reference
from agent.builtin.fusion import Unit, fuse, operands
from agent.builtin.graph import SUBMODULE
from agent.builtin.host import Host, in_place_outputs
from agent.builtin.language import Ask, Batch, Kernel, Language, environment
from agent.builtin.launches import Launch, beginning, launches, places
from agent.builtin.naming import attention_comment, comment, description, kernel_name, unique
from agent.builtin.plan import Plan
from agent.builtin.program import Attention, Library, Program, View, reading, slots
from agent.builtin.schedule import GRAPH_KNOBS, Schedule
from agent.builtin.space import Region

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
        self.used = {
            knob: schedule.get(knob, values[0])
            for knob, values in GRAPH_KNOBS.items()
            if knob in language.graph_knobs
        }
        self.used |= program.choices
        recurrences = [unit.recurrence for unit in units if isinstance(unit, Region) and unit.recurrence]
        self.placed = dict(program.placed)  # what is written into part of something
        for recurrence in recurrences:
            self.placed.update(recurrence.results)
        self.entries: dict[Hashable, _Entry] = {}

    def run(self) -> Rendered:
        self.host.start()
        for unit in launches(self.units, self.program, self.language.batches):
            if isinstance(unit, Library):
                self.host.library(unit.name, unit.node, unit.order)
            elif isinstance(unit, Attention):
                self.attention(unit)
            else:
                self.launch(unit)
        self.host.finish()
        return self.fill()

    def launch(self, launch: Launch) -> None:
        """Adds a kernel, unless there is one that does the same, and the launch of its calls."""
        calls = launch.calls
        read = list(zip(*(call.reads for call in calls), strict=True))
        written = list(zip(*([self.held(name) for name in c.plan.outputs] for c in calls), strict=True))
        key = launch.kernel, len(calls), tuple(len(set(bases)) > 1 for bases in (*read, *written))
        entry = self.entries.get(key)
        prefix, ask = self.knobs(entry)
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
            entry = self.entries[key] = self.entry(launch, planned, in_place, key[2], prefix, ask)
        if len(calls) == 1:
            arguments += [str(calls[0].offsets[number]) for number in launch.moving]
        self.host.lines += self.language.call(entry.kernel, arguments)

    def held(self, name: str) -> str:
        """The tensor that an output is written to, or into."""
        return self.placed[name].base if name in self.placed else name

    def argument(self, values: Sequence[str]) -> str:
        return values[0] if len(set(values)) == 1 else self.host.listed(values)

    def entry(
        self,
        launch: Launch,
        planned: Plan,
        in_place: Mapping[str, str],
        several: Sequence[bool],
        prefix: str,
        ask: Ask,
    ) -> _Entry:
        """The kernel of a launch; of which values and outputs each call has its own says `several`."""
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
        )
        kernel = self.language.kernel(
            self.title(kernel_name(planned.region)),
            beginning(planned, begins),
            self.program,
            pointers,
            frozenset(in_place),
            ask,
            batch,
        )
        return _Entry(kernel, prefix, description(planned.region), comment(planned, kernel.manner))

    def attention(self, statement: Attention) -> None:
        """The same for an attention."""
        bases = list(dict.fromkeys(view.base for view in operands(statement, self.program)))
        order = {base: str(number) for number, base in enumerate(bases)}
        read = [replace(o, base=order[o.base]) for o in slots(statement) if isinstance(o, View)]
        key = reading(replace(statement, name=""), read), tuple(self.program.dtypes[base] for base in bases)
        entry = self.entries.get(key)
        prefix, ask = self.knobs(entry)
        arguments = [*map(self.host.value, bases), self.host.allocated(statement.name)]
        if entry is None:
            pointers, _ = self.parameters(bases, [statement.name])
            title = self.title("attention_kernel")
            kernel = self.language.attention(title, statement, self.program, pointers, ask)
            said = "attention, with a running softmax", attention_comment(statement)
            entry = self.entries[key] = _Entry(kernel, prefix, *said)
        self.host.lines += self.language.call(entry.kernel, arguments)

    def knobs(self, entry: _Entry | None) -> tuple[str, Ask]:
        """Those of a kernel, which is the next one if it is not there yet."""
        prefix = entry.prefix if entry else f"k{len(self.entries)}"
        return prefix, lambda knob, default: self.knob(f"{prefix}.{knob}", default)

    def parameters(self, reads: Sequence[str], outputs: Sequence[str]) -> tuple[dict[str, str], set[str]]:
        """Names of a kernel's parameters, by what it reads and writes; and all names that are taken."""
        pointers: dict[str, str] = {}
        taken = set(self.language.reserved)
        for base in reads:
            value = self.host.value(base).removeprefix("self.")
            pointers[base] = unique(re.sub(r"\W+", "_", value).strip("_"), taken)
        for name in outputs:
            pointers[name] = unique(f"{name}_out", taken)
        return pointers, taken

    def title(self, name: str) -> str:
        """What a new kernel is called."""
        found = unique(name, self.host.taken | self.language.reserved)
        self.host.taken.add(found)
        return found

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
                looks_up=any(isinstance(u, Library) and u.node.op == "indices" for u in self.units),
                left=self.left(),
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
        libraries = (u for u in self.units if isinstance(u, Library) and u.node.op != SUBMODULE)
        ops = [u.node.op.split(".") for u in libraries]
        return list(dict.fromkeys(parts[1] for parts in ops if len(parts) > 1))

    def left(self) -> dict[str, list[str]]:
        """The submodules left to torch, by the reason."""
        found: dict[str, list[str]] = {}
        for path, reason in self.program.graph.left.items():
            found.setdefault(reason, []).append(path)
        return found

    def imports(self) -> list[str]:
        lines = {*self.reference.imports, "import torch", *self.language.imports}
        if any("F." in line for line in self.host.lines):
            lines.add("import torch.nn.functional as F")
        return sorted(lines, key=lambda line: (line.startswith("from"), line))
