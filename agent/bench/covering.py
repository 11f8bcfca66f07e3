"""What of the work the winners of a finished run do in kernels of their own; nothing is run for that.

Each task is traced again, and its program made again from the schedule that the run has recorded: by the
builtin coder as it is now, so measure again after it has changed.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import mean

from kernelwright.agent.bench.publishing import log
from kernelwright.agent.builtin.coverage import Cost, Coverage, coverage
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench.evaluator import Limits
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.machine import cache_folder, physical_threads
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.results import formatting
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.summary import best_attempt

COLUMNS = ("task", "bytes", "FLOPs")


def covered(database: RunDatabase) -> dict[str, Coverage]:
    """By task: of the winners that the builtin coder has written. Nothing of a reference is its own."""
    found: dict[str, Coverage] = {}
    own: list[tuple[Task, Candidate]] = []
    for entry in database.tasks():
        best = best_attempt(database.attempts(entry.task.id))
        if best is None or best.candidate.author != "builtin":
            continue
        if best.candidate.language == "torch":
            found[entry.task.id] = Coverage(own=Cost(), library=Cost())
        else:
            own.append((entry.task, best.candidate))
    if own:
        with (
            WorkerPool(threads=1, cache=cache_folder(), limits=Limits()) as pool,
            ThreadPoolExecutor(physical_threads()) as executor,
        ):
            shares = executor.map(lambda pair: _of(pool, *pair), own)
            found |= {task.id: each for (task, _), each in zip(own, shares, strict=True) if each is not None}
    return found


def _of(pool: WorkerPool, task: Task, candidate: Candidate) -> Coverage | None:
    try:
        return coverage(trace(pool, task), Schedule.from_dict(candidate.schedule))
    except (Untraceable, ValueError) as error:  # a schedule of another version
        log(f"{task.id}: not covered any more: {error}")
        return None


def section(found: Mapping[str, Coverage]) -> str:
    """The shares of own kernels as a chapter in Markdown."""
    rows = [(task, each.bytes_share, each.flops_share) for task, each in found.items()]
    if rows:
        rows.append(("mean", *means(tuple(found.values()))))
    cells = [(task, formatting.share(moved), formatting.share(computed)) for task, moved, computed in rows]
    table = ["| " + " | ".join(row) + " |" for row in (COLUMNS, ["---"] * len(COLUMNS), *cells)]
    return "\n".join(["", "## What own kernels cover", "", *table, ""])


def means(found: Sequence[Coverage]) -> tuple[float, float]:
    """Of the shares of bytes and of FLOPs, each task counted alike."""
    return mean(each.bytes_share for each in found), mean(each.flops_share for each in found)
