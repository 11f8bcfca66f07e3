"""Bytes and FLOPs that the winners of a finished run spend in their own kernels; nothing is run for that.

Each task is traced again, and its program is rebuilt from the schedule in the run database by the builtin
coder as it is now. After the coder has changed, the run must be measured again.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import mean

from benchmarks.publishing import log, table
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


def covered(database: RunDatabase) -> dict[str, Coverage]:
    """Coverage by task, of the winners of the builtin coder; a reference that won covers nothing."""
    by_task: dict[str, Coverage] = {}
    winners: list[tuple[Task, Candidate]] = []
    for entry in database.tasks():
        best = best_attempt(database.attempts(entry.task.id))
        if best is None or best.candidate.author != "builtin":
            continue
        if best.candidate.language == "torch":
            by_task[entry.task.id] = Coverage(own=Cost(), library=Cost())
        else:
            winners.append((entry.task, best.candidate))
    if winners:
        with (
            WorkerPool(threads=1, cache=cache_folder(), limits=Limits()) as pool,
            ThreadPoolExecutor(physical_threads()) as executor,
        ):
            costs = executor.map(lambda winner: _coverage(pool, *winner), winners)
            for (task, _), cost in zip(winners, costs, strict=True):
                if cost is not None:
                    by_task[task.id] = cost
    return by_task


def _coverage(pool: WorkerPool, task: Task, candidate: Candidate) -> Coverage | None:
    try:
        return coverage(trace(pool, task), Schedule.from_dict(candidate.schedule))
    except (Untraceable, ValueError) as error:  # a schedule of another version
        log(f"{task.id}: the schedule is no longer valid: {error}")
        return None


def section(by_task: Mapping[str, Coverage]) -> str:
    """Return a Markdown section with the shares of own kernels, a row a task and one for the mean."""
    rows = [(task, each.bytes_share, each.flops_share) for task, each in by_task.items()]
    if rows:
        rows.append(("mean", *mean_shares(tuple(by_task.values()))))
    cells = [(task, formatting.share(moved), formatting.share(computed)) for task, moved, computed in rows]
    lines = table(("task", "bytes", "FLOPs"), cells)
    return "\n".join(["", "## What own kernels cover", "", *lines, ""])


def mean_shares(coverages: Sequence[Coverage]) -> tuple[float, float]:
    """Mean shares of bytes and of FLOPs, where every task counts alike."""
    return mean(each.bytes_share for each in coverages), mean(each.flops_share for each in coverages)
