"""Cutting of a task into parts, in a worker: task code never runs in the agent's process."""

import json

from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.records import PartOf, Task

_TIMEOUT_S = 300.0


class NotCut(Exception):  # noqa: N818 - a property of a task
    """A task is not cut into parts; says why."""


def cut(pool: WorkerPool, task: Task) -> list[Task]:
    """Return the parts of a task as tasks, the most expensive first. Raises NotCut."""
    pool.import_first(("kernelwright.agent.builtin.frontend.trace",))  # which takes seconds
    with pool.start("oracle", "kernelwright.agent.parts.cutting:serve") as worker:
        request = {
            "name": task.id,
            "source": task.source,
            "precision": str(task.precision),
            "device": pool.worker_device,
        }
        try:
            answer = json.loads(worker.request(request, _TIMEOUT_S))
        except (WorkerDied, WorkerTimeout) as error:
            raise NotCut(f"measuring its submodules did not end well: {error}") from None
    if "error" in answer:
        raise NotCut(answer["error"])
    parts = [_part(task, **found) for found in answer["parts"]]
    if not parts:
        refused = "".join(f"; {path}: {why}" for path, why in answer["refused"].items())
        raise NotCut(f"no submodules that can stand alone take most of its time{refused}")
    return parts


def _part(task: Task, *, source: str, **place: object) -> Task:
    part = PartOf.model_validate({"whole": task.id, **place})
    first = part.places[0][0]
    return Task(id=f"{task.id}#{first}", level=task.level, source=source, precision=task.precision, part=part)


def serve(channel: Channel) -> None:
    """Worker entry: measure one task."""
    from kernelwright.agent.parts.measuring import Submodules

    message, _ = channel.receive_json()
    try:
        submodules = Submodules(**message)
        channel.send_json({"parts": submodules.parts(), "refused": submodules.refused})
    except Exception as error:  # noqa: BLE001 - task code may raise anything
        channel.send_json({"error": f"{type(error).__name__}: {error}"[:2000]})
