"""Tracing a reference for the builtin coder, in a worker: task code never runs in the agent's process."""

import json

from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.records import Task

_TIMEOUT_S = 300.0


def trace(pool: WorkerPool, task: Task) -> Graph:
    """Trace the graph of a task's reference. Raises Untraceable, or TaskError when the reference fails."""
    # With torch.export: seconds, once instead of for each task.
    pool.import_first(("kernelwright.agent.builtin.frontend.trace",))
    with pool.start("oracle", "kernelwright.agent.tracing:serve") as worker:
        request = {"do": "trace", "source": task.source, "precision": str(task.precision)}
        try:
            answer = json.loads(worker.request(request, _TIMEOUT_S))
        except (WorkerDied, WorkerTimeout) as error:
            raise Untraceable(f"tracing did not end well: {error}") from None
    if "graph" in answer:
        return Graph.from_json(answer["graph"])
    if answer["untraceable"]:
        raise Untraceable(answer["error"])
    raise TaskError(
        f"the reference of {task.id} fails: {answer['error']}", "run it by hand and fix the task file"
    )


def serve(channel: Channel) -> None:
    """Worker entry: trace one task."""
    from kernelwright.agent.builtin.frontend.trace import trace_json

    message, _ = channel.receive_json()
    try:
        channel.send_json({"graph": trace_json(message["source"], message["precision"])})
    except Exception as error:  # noqa: BLE001 - task code may raise anything
        text = f"{type(error).__name__}: {error}"[:2000]
        channel.send_json({"untraceable": isinstance(error, Untraceable), "error": text})
