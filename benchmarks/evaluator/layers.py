"""Cost of each layer of the sandbox: the start of a worker, and one message there and back.

    python -m benchmarks layers

Machine: CPU, quiet; layers that are off on it are left out. Time: 2 minutes (estimate). Writes
cpu/layers.md.
"""

import statistics
import time
from contextlib import ExitStack
from typing import Annotated

import typer

from benchmarks.publishing import publish
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.machine import cache_folder

_LAYERS = (
    "pid_namespace",
    "network_namespace",
    "ipc_namespace",
    "mount_namespace",
    "control_groups",
    "landlock",
    "seccomp",
)
_ALL, _NONE = "all of them", "none of them"
_WORKER = "kernelwright.kernelbench.evaluator.processes.worker:serve"
_NOTHING = {"do": "run", "slots": [], "seeds": []}  # a worker that has loaded nothing says so
_MESSAGES = 20  # to each worker


def run(repeats: Annotated[int, typer.Option(help="Workers started for each layer.")] = 100) -> None:
    with ExitStack() as stack:
        sandboxed = stack.enter_context(Referee.start(cache=cache_folder()))
        on = [layer.name for layer in sandboxed.sessions.pool.layers() if layer.on and layer.name in _LAYERS]
        referees = {_ALL: sandboxed}
        for name in (*on, _NONE):
            without = _LAYERS if name == _NONE else (name,)
            referees[name] = stack.enter_context(Referee.start(cache=cache_folder(), without=without))
        times_ms: dict[str, list[tuple[float, float]]] = {name: [] for name in referees}
        for _ in range(repeats):
            for name, referee in referees.items():
                times_ms[name].append(_start_and_message_ms(referee.sessions.pool))
        machine = sandboxed.target.fingerprint
    medians = {name: _medians(measured) for name, measured in times_ms.items()}
    rows = []
    for name, (start, message) in medians.items():
        costs, label = ("", ""), name
        if name in on:
            costs = f"{medians[_ALL][0] - start:.2f}", f"{medians[_ALL][1] - message:.3f}"
            label = f"all but {name}"
        if name == "pid_namespace":
            label += " and mount_namespace"  # which needs it
        rows.append((label, f"{start:.2f}", costs[0], f"{message:.3f}", costs[1]))
    header = ("layers on", "worker starts, ms", "so it costs", "message, ms", "so it costs")
    publish("layers", "What the sandbox costs", header, rows, machine)


def _medians(measured: list[tuple[float, float]]) -> tuple[float, float]:
    starts, messages = zip(*measured, strict=True)
    return statistics.median(starts), statistics.median(messages)


def _start_and_message_ms(pool: WorkerPool) -> tuple[float, float]:
    """Time from asking for a worker to its first answer, less a message; and a message there and back."""
    started = time.perf_counter()
    with pool.start("candidate", _WORKER, "bench") as worker:
        worker.request(_NOTHING, 60)
        first = time.perf_counter() - started
        times = []
        for _ in range(_MESSAGES):
            started = time.perf_counter()
            worker.request(_NOTHING, 60)
            times.append(time.perf_counter() - started)
    message = statistics.median(times)
    return 1e3 * (first - message), 1e3 * message
