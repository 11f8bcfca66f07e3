"""The demo's tasks and samples, drawn, traced and written once, and stored in its folder."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.kernelbench.machine import physical_threads
from kernelwright.kernelbench.records import Candidate, Record, Target
from kernelwright.rl_training.demo.corpus import Schedules
from kernelwright.rl_training.demo.grammar import DrawnTask, every_task
from kernelwright.rl_training.demo.settings import DemoSettings
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.replies import without_model
from kernelwright.rl_training.rewards import state_io


class DemoTask(Record):
    """A task of the demo. `held`: its sequence of operations occurs in no data and no rewarded task."""

    drawn: DrawnTask
    graph: str  # JSON
    files: tuple[Candidate, ...]  # by the builtin coder, under random schedules, for SFT
    held: bool

    @property
    def schedules(self) -> Schedules:
        return Schedules(Graph.from_json(self.graph), self.drawn.source)

    def data(self, target: Target) -> TaskData:
        return TaskData(task=self.drawn.task, language="cpp", target=target, work=self.drawn.work)


class _StoredTasks(Record):
    tasks: tuple[DemoTask, ...]


@dataclass(frozen=True)
class DemoTasks:
    known: tuple[DemoTask, ...]  # SFT has files of them; the first of them are rewarded
    held: tuple[DemoTask, ...]


def tasks_of(settings: DemoSettings, folder: Path) -> DemoTasks:
    """Return the tasks stored in the folder, or draw and trace them now. Raises StorageError."""
    kept_in = folder / "tasks.json"
    found = state_io.read(kept_in, _StoredTasks)
    if found is None:
        found = _StoredTasks(tasks=tuple(_made(settings)))
        state_io.write(kept_in, found)
    by_kind = (tuple(task for task in found.tasks if task.held == held) for held in (False, True))
    return DemoTasks(*by_kind)


def _made(settings: DemoSettings) -> Iterator[DemoTask]:
    rng = random.Random(settings.data_seed)
    tasks = every_task(rng)
    sequences = sorted({task.sequence for task in tasks})
    held = set(rng.sample(sequences, settings.held_sequences))
    known = [task for task in tasks if task.sequence not in held][: settings.known_tasks]
    tried = [task for task in tasks if task.sequence in held][: settings.tried_tasks]
    jobs = [(task, settings.files_a_task if task not in tried else 0) for task in [*known, *tried]]
    # Imported again in each process, for torch's threads do not outlive a fork.
    with ProcessPoolExecutor(physical_threads(), mp_context=get_context("spawn")) as pool:
        for place, (graph, files) in enumerate(pool.map(_written, jobs, chunksize=4)):
            yield DemoTask(drawn=jobs[place][0], graph=graph, files=files, held=place >= len(known))


def _written(job: tuple[DrawnTask, int]) -> tuple[str, tuple[Candidate, ...]]:
    """Trace a drawn task and write its files; drawn tasks are trusted code and need no sandbox."""
    import warnings

    import torch

    from kernelwright.agent.builtin.frontend.trace import trace_json

    task, count = job
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    graph = trace_json(task.source)
    schedules = Schedules(Graph.from_json(graph), task.source)
    return graph, tuple(schedules.some(random.Random(task.name), count)) if count else ()


def samples(tasks: Sequence[DemoTask], target: Target) -> list[dict[str, Any]]:
    """Return rows for SFT: the prompt of each task with each of its files."""
    said = [without_model(task.data(target), made) for task in tasks for made in task.files]
    return [
        {
            "prompt": [message.model_dump() for message in each.messages],
            "completion": [{"role": "assistant", "content": each.reply}],
        }
        for each in said
    ]
