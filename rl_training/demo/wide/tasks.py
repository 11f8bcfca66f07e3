"""Tasks of the demo over the wide space: drawn, traced once, and stored in its folder.

Held-out tasks have sequences of operations that no rewarded task has, each of them another, so that what is
found of one says little of the next. The second set is the built-in suite, which nothing was tuned on.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from kernelwright.agent.builtin.codegen.cpp.backend import Cpp
from kernelwright.agent.builtin.compile import NothingToFuse
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.tuner.policy.features import Words, features
from kernelwright.agent.tuner.policy.space import ScheduleSpace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.machine import physical_threads
from kernelwright.kernelbench.records import Record, Task
from kernelwright.rl_training.demo.grammar import every_task_of
from kernelwright.rl_training.demo.wide.settings import WideSettings
from kernelwright.rl_training.rewards import state_io

Kind = Literal["rewarded", "held out", "suite"]
LANGUAGE = Cpp(every_choice=True)  # slow schedules, too: the policy is to learn which they are
_SUITES = ("builtin:level1", "builtin:level2")


class WideTask(Record):
    task: Task
    kind: Kind
    graph: str  # JSON

    @cached_property
    def space(self) -> ScheduleSpace:
        return ScheduleSpace(Graph.from_json(self.graph), self.task.source, LANGUAGE)


class _StoredTasks(Record):
    tasks: tuple[WideTask, ...]


@dataclass(frozen=True)
class WideTasks:
    all: tuple[WideTask, ...]

    def of(self, kind: Kind) -> tuple[WideTask, ...]:
        return tuple(each for each in self.all if each.kind == kind)

    @cached_property
    def words(self) -> Words:
        """The words of the rewarded tasks, which the policy learns."""
        return Words(word for each in self.of("rewarded") for word in features(each.space.graph))

    @property
    def longest(self) -> int:
        """Tokens of the longest line, with its end."""
        return max(len(each.space.slots) for each in self.all) + 1


def tasks_of(settings: WideSettings, folder: Path, say: Callable[[str], None]) -> WideTasks:
    """Return the tasks stored in the folder, or draw and trace them now. Raises StorageError."""
    kept_in = folder / "tasks.json"
    found = state_io.read(kept_in, _StoredTasks)
    if found is None:
        say("drawing and tracing tasks")
        found = _StoredTasks(tasks=tuple(_made(settings)))
        state_io.write(kept_in, found)
    return WideTasks(found.tasks)


def _made(settings: WideSettings) -> Iterator[WideTask]:
    drawn = list(drawn_tasks(settings))
    # Imported again in each process, for torch's threads do not outlive a fork.
    with ProcessPoolExecutor(physical_threads(), mp_context=get_context("spawn")) as pool:
        graphs = pool.map(_traced, [task.source for task, _ in drawn], chunksize=4)
        suite = 0
        for (task, kind), graph in zip(drawn, graphs, strict=True):
            made = WideTask(task=task, kind=kind, graph=graph) if graph else None
            if made is None or not _has_schedules(made):
                continue
            suite += kind == "suite"
            if kind != "suite" or suite <= settings.suite_tasks:
                yield made


def drawn_tasks(settings: WideSettings) -> Iterator[tuple[Task, Kind]]:
    """Yield the tasks with their kinds: of the suite more than are tried, since some have no schedule."""
    rng = random.Random(settings.data_seed)
    drawn = every_task_of(settings.shapes, rng)
    held = rng.sample(sorted({task.sequence for task in drawn}), settings.held_tasks)
    known = [task for task in drawn if task.sequence not in held][: settings.known_tasks]
    yield from ((task.task, "rewarded") for task in known)
    for place, sequence in enumerate(held):  # the shapes in turn
        rows, columns = settings.shapes[place % len(settings.shapes)]
        yield from (
            (task.task, "held out")
            for task in drawn
            if (task.sequence, task.rows, task.columns) == (sequence, rows, columns)
        )
    suite = [task for name in _SUITES for task in sources.resolve([], suite=name, device="cpu")]
    some = rng.sample(suite, min(len(suite), 2 * settings.suite_tasks))
    yield from ((task, "suite") for task in some)


def _traced(source: str) -> str:
    """Return a task's graph; "" where it cannot be traced. Drawn tasks and the suite's are trusted code."""
    import warnings

    import torch

    from kernelwright.agent.builtin.frontend.trace import trace_json

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        return trace_json(source)
    except Untraceable:
        return ""


def _has_schedules(made: WideTask) -> bool:
    try:
        return bool(made.space.slots) and bool(features(made.space.graph))
    except (Untraceable, NothingToFuse):
        return False
