"""From a program and a schedule to the text of a candidate file."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.builtin import reference
from agent.builtin.fusion import fuse
from agent.builtin.graph import SUBMODULE
from agent.builtin.host import Host, in_place_outputs
from agent.builtin.language import Ask, Batch, Kernel, Language
from agent.builtin.launches import Launch, beginning, launches, places
from agent.builtin.naming import comment, description, kernel_name, unique
from agent.builtin.plan import Plan
from agent.builtin.program import Library, Program
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
    """A kernel in the file, with what it was made from."""

    kernel: Kernel
    plan: Plan
    prefix: str  # of its knobs


class NothingToFuse(Exception):  # noqa: N818 - a property of the graph, not a fault
    """All of the graph is library calls."""


def render(program: Program, source: str, schedule: Schedule, language: Language) -> Rendered:
    """The candidate for `program`, which was traced from `source`.

    It has no kernel where everything is a library call, other than the reference's.
    Raises NothingToFuse where they are the reference's.
    """
    units = fuse(program, apart=schedule.get("fuse", "all") == "apart")
    chosen = bool(program.choices) and any(isinstance(unit, Library) and unit.order for unit in units)
    if not chosen and not any(isinstance(unit, Region) for unit in units):
        raise NothingToFuse
    return _Rendering(program, source, schedule, units, language).run()


class _Rendering:
    def __init__(
        self,
        program: Program,
        source: str,
        schedule: Schedule,
        units: Sequence[Region | Library],
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
        prefix = entry.prefix if entry else f"k{len(self.entries)}"

        def ask(knob: str, default: str) -> str:
            return self.knob(f"{prefix}.{knob}", default)

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
        reads, taken = launch.calls[0].reads, set(self.language.reserved)
        pointers: dict[str, str] = {}
        for base in reads:
            value = self.host.value(base).removeprefix("self.")
            pointers[base] = unique(re.sub(r"\W+", "_", value).strip("_"), taken)
        for name in planned.outputs:
            pointers[name] = unique(f"{name}_out", taken)
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
        title = unique(kernel_name(planned.region), self.host.taken | self.language.reserved)
        self.host.taken.add(title)
        kernel = self.language.kernel(
            title, beginning(planned, begins), self.program, pointers, frozenset(in_place), ask, batch
        )
        return _Entry(kernel, planned, prefix)

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
            _environment(self.language.folder)
            .get_template("file.py.j2")
            .render(
                kernels=[
                    {
                        "name": e.kernel.name,
                        "description": description(e.plan.region),
                        "comment": comment(e.plan, e.kernel.manner, self.knobs_of(e.prefix)),
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

    def knobs_of(self, prefix: str) -> dict[str, str]:
        return {k.partition(".")[2]: v for k, v in self.used.items() if k.startswith(f"{prefix}.")}

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


@cache
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([folder, _TEMPLATES]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is Python, not HTML
    )
