"""Kernels of the builtin coder for drawn tasks, under all schedules of a small space: data for SFT.

Slow schedules are included as well as fast ones: RL is to find out which are fast.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from kernelwright.agent.builtin.codegen.cpp.backend import Cpp
from kernelwright.agent.builtin.codegen.render import Rendered
from kernelwright.agent.builtin.compile import compile_graph
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.schedule import Schedule, legal
from kernelwright.kernelbench.records import Candidate

_LANGUAGE = Cpp(every_choice=True)
# What is chosen for all kernels of a task together; other knobs have the coder's own values.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "fuse": ("all", "apart"),
    "threads": ("all", "1"),
    "block": ("256", "64", "1024"),
    "streaming": ("off", "on"),
}


@dataclass(frozen=True)
class Schedules:
    """Kernels that the builtin coder writes for a task."""

    graph: Graph
    source: str  # of the task

    def all(self) -> Iterator[Candidate]:
        """Yield every distinct file, in the order of nested loops over the choices."""
        seen: set[str] = set()
        for values in product(*CHOICES.values()):
            made = self.candidate(dict(zip(CHOICES, values, strict=True)))
            if made.sha256 not in seen:
                seen.add(made.sha256)
                yield made

    def some(self, rng: random.Random, count: int) -> list[Candidate]:
        """Return `count` distinct files at random, or all of them if there are fewer."""
        found: dict[str, Candidate] = {}
        for values in rng.sample(every := list(product(*CHOICES.values())), len(every)):
            made = self.candidate(dict(zip(CHOICES, values, strict=True)))
            found.setdefault(made.sha256, made)
            if len(found) == count:
                break
        return list(found.values())

    def candidate(self, chosen: Mapping[str, str]) -> Candidate:
        graph_knobs = {"fuse": chosen["fuse"]}
        first = self._rendered(graph_knobs)
        rendered = self._rendered(graph_knobs | dict(_for_each_kernel(first, chosen)))
        return Candidate(
            source=rendered.source,
            language="cpp",
            author="builtin",
            schedule=rendered.schedule.to_dict(),
            kernels=rendered.kernels,
        )

    def _rendered(self, values: Mapping[str, str]) -> Rendered:
        schedule = Schedule.from_dict({**_LANGUAGE.defaults, **values})
        return compile_graph(self.graph, self.source, schedule, _LANGUAGE)


def _for_each_kernel(rendered: Rendered, chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for knob in rendered.schedule.values:
        kernel, _, name = knob.rpartition(".")
        among = rendered.alternatives.get(knob, legal(knob))
        if kernel and chosen.get(name) in among:
            yield knob, chosen[name]
