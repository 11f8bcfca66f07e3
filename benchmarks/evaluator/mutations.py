"""Mutation testing of the error budgets: operators of a reference that read less than all of an operand.

    python -m benchmarks mutations [TASK...]

A mutation that changes outputs and goes unnoticed is work that a kernel could leave out. Beside the budgets
stands torch.allclose on one draw of the task's own inputs, with the tolerances of KernelBench's checker in
its first version, 1e-2, and now, 1e-4. Machine: CPU. Time: an hour (estimate). Writes cpu/mutations.md.
"""

from collections.abc import Sequence
from typing import Annotated

import typer

from benchmarks.publishing import log, publish
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.evaluator.correctness.oracle_client import MutationRecord as Mutation
from kernelwright.kernelbench.machine import cache_folder

_HEADER = (
    "an operator reads of an operand",
    "tried",
    "allclose 1e-2",
    "allclose 1e-4",
    "our budgets, own inputs",
    "our budgets, all families",
)


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Tasks; the whole suite by default.")] = None,
) -> None:
    tried: list[tuple[str, Mutation]] = []
    failed = []
    with Referee.start(cache=cache_folder()) as evaluator:
        tasks = sources.resolve(names) if names else sources.resolve([], suite="builtin")
        for number, task in enumerate(tasks, 1):
            try:
                result = evaluator.sessions.open(task).oracle.mutations(evaluator.sessions.protocol.families)
            except TaskError as error:
                failed.append((task.id, error.message))
                log(f"[{number}/{len(tasks)}] {task.id}: {error.message}")
                continue
            tried += [(task.id, mutation) for mutation in result.tried if mutation.changes]
            log(f"[{number}/{len(tasks)}] {task.id}: {len(result.unnoticed)} of {len(result.tried)}")
        machine = evaluator.target.fingerprint
    kinds = dict.fromkeys(mutation.reads for _, mutation in tried)
    rows = [(kind, *_unnoticed([m for _, m in tried if m.reads == kind])) for kind in kinds]
    rows.append(("all", *_unnoticed([mutation for _, mutation in tried])))
    rows += [(f"{task}: {m}", "", "", "", "", "") for task, m in tried if m.noticed_by is None]
    rows += [(f"{task}: {why}", "", "", "", "", "") for task, why in failed]
    publish("mutations", "Ways to compute less that go unnoticed", _HEADER, rows, machine)


def _unnoticed(mutations: Sequence[Mutation]) -> tuple[str, ...]:
    """Count of mutations tried, and of those that pass each checker."""
    return (
        str(len(mutations)),
        *(str(sum(m.close[tolerance] for m in mutations)) for tolerance in (1e-2, 1e-4)),
        str(sum(m.noticed_by != "task" for m in mutations)),
        str(sum(m.noticed_by is None for m in mutations)),
    )
