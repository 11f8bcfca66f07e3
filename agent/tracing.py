"""Tracing a reference for the builtin coder, in a worker: task code never runs in the agent's process."""

import json
from collections.abc import Mapping
from typing import Any

from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.free_sizes.size import Limits
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.sources.overrides import apply

_TIMEOUT_S = 300.0


def trace(pool: WorkerPool, task: Task) -> Graph:
    """Trace the graph of a task's reference. Raises Untraceable, or TaskError when the reference fails."""
    return Graph.from_json(_asked(pool, task, {"do": "trace"}))


class FreeTracer:
    """Traces of a task's reference at several sizes: values of constants of its file."""

    def __init__(self, pool: WorkerPool, task: Task) -> None:
        self._pool, self._task = pool, task

    def graph(self, sizes: Mapping[str, int]) -> Graph:
        """Trace the graph at these sizes. Raises Untraceable, or TaskError when the reference fails."""
        return trace(self._pool, self._at(sizes))

    def limits(self, sizes: Mapping[str, int], free: Mapping[str, Mapping[int, str]]) -> Limits:
        """Return the limits of free sizes, named by argument and axis, for which forward does the same."""
        found = json.loads(_asked(self._pool, self._at(sizes), {"do": "limits", "free": free}))
        return {name: (least, most) for name, (least, most) in found.items()}

    def _at(self, sizes: Mapping[str, int]) -> Task:
        constants = {name: str(size) for name, size in sizes.items()}
        source = apply(self._task.source, constants, self._task.id)
        return self._task.model_copy(update={"source": source})


def _asked(pool: WorkerPool, task: Task, request: Mapping[str, Any]) -> str:
    # With torch.export: seconds, once instead of for each task.
    pool.import_first(("kernelwright.agent.builtin.frontend.trace",))
    with pool.start("oracle", "kernelwright.agent.tracing:serve") as worker:
        request = {**request, "source": task.source, "precision": str(task.precision)}
        try:
            answer = json.loads(worker.request(request, _TIMEOUT_S))
        except (WorkerDied, WorkerTimeout) as error:
            raise Untraceable(f"tracing did not end well: {error}") from None
    if "found" in answer:
        return str(answer["found"])
    if answer["untraceable"]:
        raise Untraceable(answer["error"])
    raise TaskError(
        f"the reference of {task.id} fails: {answer['error']}", "run it by hand and fix the task file"
    )


def serve(channel: Channel) -> None:
    """Worker entry: trace one task."""
    from kernelwright.agent.builtin.frontend.trace import limits_json, trace_json

    message, _ = channel.receive_json()
    source, precision = message["source"], message["precision"]
    try:
        if message["do"] == "limits":
            found = limits_json(source, precision, message["free"])
        else:
            found = trace_json(source, precision)
        channel.send_json({"found": found})
    except Exception as error:  # noqa: BLE001 - task code may raise anything
        text = f"{type(error).__name__}: {error}"[:2000]
        traced_before = message["do"] == "limits"  # so it is not the task's fault
        untraceable = traced_before or isinstance(error, Untraceable)
        channel.send_json({"untraceable": untraceable, "error": text})
