"""Schedules of a task as lines of tokens, and the grammar of those lines.

A line has a token for each knob, in a fixed order, and the name of each kernel before the knobs of it. The
task `torch.softmax(torch.tanh(x), dim=-1)` is one kernel, or three:

    fuse=all vector=512 unroll=off k0: block=256 streaming=off … k1: block=64 … k2: …

Which kernels there are depends on what is fused, so a line has the knobs of all ways to fuse, and the coder
reads those of the way that the line says. So every line of the grammar is a file.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from kernelwright.agent.builtin.codegen.backend import Language
from kernelwright.agent.builtin.codegen.render import Rendered
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, KERNEL_KNOBS, Schedule, legal, name_of
from kernelwright.agent.builtin.sizes.blocks import compiled
from kernelwright.kernelbench.records import Candidate

KERNELS = 8  # of which a line says something; those after them have the coder's own values
_OF_CODE = ("vector", "unroll")  # knobs of a graph that change no kernel's knobs
_NOT_CHOSEN = ("kernels",)


@dataclass(frozen=True)
class Slot:
    """One token of a line: a knob with its values, the first `count` legal ones, or a kernel's name."""

    kernel: str  # "" for knobs of the whole graph
    knob: str = ""  # its name without the kernel; "" where the token is the kernel's name
    count: int = 1

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that may stand here."""
        if not self.knob:
            return (f"{self.kernel}:",)
        values = legal(f"{self.kernel}.{self.knob}" if self.kernel else self.knob)
        return tuple(f"{self.knob}={value}" for value in values[: self.count])

    @property
    def asked(self) -> str:
        """The token by which a prompt asks for it."""
        return f"{self.knob}?{self.count}" if self.knob else f"{self.kernel}:"


@dataclass(frozen=True)
class ScheduleSpace:
    """Schedules of a traced task in a language."""

    graph: Graph
    source: str  # of the task
    language: Language

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The grammar of a line. Raises Untraceable, and NothingToFuse where there is no schedule."""
        counts: dict[str, int] = {}
        for rendered in self._fusions:
            for knob in rendered.schedule.values:
                values = rendered.alternatives.get(knob, legal(knob))
                counts[knob] = max(counts.get(knob, 0), len(values))
        found = [Slot("", knob, counts[knob]) for knob in GRAPH_KNOBS if _is_choice(knob, counts)]
        for kernel in (f"k{number}" for number in range(KERNELS)):
            own = [name for name in KERNEL_KNOBS if _is_choice(f"{kernel}.{name}", counts)]
            if own:
                found.append(Slot(kernel))
                found += [Slot(kernel, name, counts[f"{kernel}.{name}"]) for name in own]
        return tuple(found)

    @property
    def size(self) -> int:
        """Number of schedules that differ in a knob that is read, with each way to fuse changed alone."""
        structures = {
            tuple(value for knob, value in rendered.schedule.values.items() if _is_structure(knob)): rendered
            for rendered in self._fusions
        }
        return sum(
            math.prod(
                len(rendered.alternatives.get(knob, legal(knob)))
                for knob in rendered.schedule.values
                if not _is_structure(knob) and knob not in _NOT_CHOSEN
            )
            for rendered in structures.values()
        )

    def draw(self, rng: Random) -> str:
        """Draw a random line: a way to fuse, then a value of each knob that it has."""
        rendered = rng.choice(self._fusions)
        drawn = {
            knob: now if _is_structure(knob) else rng.choice(rendered.alternatives.get(knob, legal(knob)))
            for knob, now in rendered.schedule.values.items()
            if knob not in _NOT_CHOSEN
        }
        return line_of(drawn, self.slots)

    def is_line(self, line: str) -> bool:
        tokens = line.split()
        return len(tokens) == len(self.slots) and all(
            token in slot.tokens for token, slot in zip(tokens, self.slots, strict=True)
        )

    def candidate(self, line: str, author: str = "builtin") -> Candidate:
        """Return the file of a line. Raises ValueError for what is no schedule."""
        rendered = self._rendered(schedule_of(line))
        return Candidate(
            source=rendered.source,
            language=self.language.name,
            author=author,
            schedule=rendered.schedule.to_dict(),
            kernels=rendered.kernels,
            alternatives=dict(rendered.alternatives),
        )

    @cached_property
    def _fusions(self) -> tuple[Rendered, ...]:
        """The default schedule, and it with each knob changed that decides which kernels there are."""
        first = self._rendered({})
        changes: list[Mapping[str, str]] = [
            {knob: value}
            for knob, now in first.schedule.values.items()
            if _is_structure(knob)
            for value in first.alternatives.get(knob, legal(knob))
            if value != now
        ]
        return (first, *(self._rendered(change) for change in changes))

    def _rendered(self, values: Mapping[str, str]) -> Rendered:
        schedule = Schedule.from_dict({**self.language.defaults, **values})
        return compiled(self.graph, self.source, schedule, self.language)


def schedule_of(line: str) -> dict[str, str]:
    """Return the schedule that a line says. Raises ValueError."""
    return dict(_knobs(line.split()))


def line_of(schedule: Mapping[str, str], slots: Sequence[Slot]) -> str:
    """Return the line of a schedule; a knob that it does not have is at its first value."""
    said = []
    for slot in slots:
        knob = f"{slot.kernel}.{slot.knob}" if slot.kernel else slot.knob
        token = f"{slot.knob}={schedule[knob]}" if slot.knob and knob in schedule else slot.tokens[0]
        said.append(token if token in slot.tokens else slot.tokens[-1])
    return " ".join(said)


def _knobs(tokens: Sequence[str]) -> Iterator[tuple[str, str]]:
    kernel = ""
    for token in tokens:
        knob, equals, value = token.partition("=")
        if token.endswith(":"):
            kernel = token.replace(":", ".")
        elif equals and value in legal(kernel + knob):
            yield kernel + knob, value
        else:
            raise ValueError(f"'{token}' is no value of a knob")


def _is_choice(knob: str, counts: Mapping[str, int]) -> bool:
    return counts.get(knob, 0) > 1 and name_of(knob) not in _NOT_CHOSEN


def _is_structure(knob: str) -> bool:
    return "." not in knob and knob not in (*_OF_CODE, *_NOT_CHOSEN)
