"""Cost of an evaluation and of its parts: building, the sandbox, many at a time."""

import itertools
import math
import statistics
import time
from contextlib import ExitStack
from typing import Annotated

import typer

from kernelwright.agent.bench.publishing import AA_TASKS, itself, publish, suite_run
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import LocalEvaluator, Referee
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.jit import latency
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Evaluation, Task
from kernelwright.results.store.database import RunDatabase

LAYERS = (
    "pid_namespace",
    "network_namespace",
    "ipc_namespace",
    "mount_namespace",
    "control_groups",
    "landlock",
    "seccomp",
)

WAYS_TO_BUILD = {
    "load_inline_stock": "torch's load_inline, nothing cached",
    "load_inline": "load_inline of a candidate, new source",
    "load_inline_hit": "load_inline of a candidate, seen before",
    "compile_cpp": "jit.compile_cpp, new source",
    "compile_cpp_hit": "jit.compile_cpp, seen before",
    "precompiled_header": "making load_inline's precompiled header, once",
}

_NOTHING = {"do": "run", "slots": [], "seeds": []}  # a worker that has loaded nothing says so

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)


def turnaround() -> None:
    """How long a candidate takes to build, and what an evaluation costs beyond building and timing."""
    table = latency.measure()
    rows = [
        (words, _seconds(getattr(table, f"{name}_s")), _times(table.ratios.get(name)))
        for name, words in WAYS_TO_BUILD.items()
    ]
    with Referee.start(cache=cache_folder()) as evaluator:
        mark = evaluator.target.fingerprint
        header: tuple[str, ...] = ("way", "time", "times as fast as torch's load_inline")
        publish("turnaround-build", "Build latency of one candidate", header, rows, mark)
        overheads = [_overhead(evaluator, task) for task in sources.resolve(AA_TASKS)]
    header = ("task", "evaluation", "build", "verify", "timing", "timed blocks", "overhead")
    publish("turnaround-overhead", "What an evaluation costs", header, overheads, mark)


def verification() -> None:
    """What verifying a correct candidate takes, from the runs that `suite` left, by eager's time a call."""
    found: list[tuple[float, float, str]] = []  # eager's ms, seconds, task
    for level in (1, 2, 3):
        with RunDatabase.open(suite_run(level), read_only=True) as database:
            mark = database.run.target.fingerprint
            for entry in database.tasks():
                for attempt in database.attempts(entry.task.id):
                    timing, seconds = attempt.evaluation.timing, attempt.evaluation.stages.verify_s
                    if timing is not None and timing.eager_us is not None:
                        found.append((timing.eager_us.median / 1e3, seconds, entry.task.id))
    rows = []
    for least, most in itertools.pairwise((0, 5, 10, 20, 40, 80, math.inf)):
        among = [(seconds, task) for ms, seconds, task in found if least <= ms < most]
        if among:
            longest, task = max(among)
            median = statistics.median(seconds for seconds, _ in among)
            label = f"{least} to {most} ms" if most < math.inf else f"{least} ms and more"
            rows.append((label, f"{len(among)}", f"{median:.2f} s", f"{longest:.2f} s", task))
    header = ("a call of eager", "evaluations", "median", "longest", "of")
    publish("verification", "What verifying a candidate takes", header, rows, mark)


def layers(repeats: Annotated[int, typer.Option(help="Workers started a layer.")] = 100) -> None:
    """What each layer of the sandbox adds to the start of a worker and to one message there and back."""
    with ExitStack() as stack:
        everything = stack.enter_context(Referee.start(cache=cache_folder()))
        on = [layer.name for layer in everything.sessions.pool.layers() if layer.on and layer.name in LAYERS]
        found: dict[str, list[tuple[float, float]]] = {"all of them": []}
        pools = {"all of them": everything.sessions.pool}
        for name in (*on, "none of them"):
            without = LAYERS if name == "none of them" else (name,)
            pools[name] = stack.enter_context(
                Referee.start(cache=cache_folder(), without=without)
            ).sessions.pool
            found[name] = []
        for _ in range(repeats):
            for name, pool in pools.items():
                found[name].append(_start_and_message_ms(pool))
        rows = []
        whole = [statistics.median(column) for column in zip(*found["all of them"], strict=True)]
        for name, measured in found.items():
            start, message = (statistics.median(column) for column in zip(*measured, strict=True))
            costs = ("", "") if name not in on else (f"{whole[0] - start:.2f}", f"{whole[1] - message:.3f}")
            label = name if name not in on else f"all but {name}"
            if name == "pid_namespace":
                label += " and mount_namespace"  # which needs it
            rows.append((label, f"{start:.2f}", costs[0], f"{message:.3f}", costs[1]))
        header = ("layers on", "worker starts, ms", "so it costs", "message, ms", "so it costs")
        publish("layers", "What the sandbox costs", header, rows, everything.target.fingerprint)


def _start_and_message_ms(pool: WorkerPool) -> tuple[float, float]:
    """From asking for a worker to its first answer, less a message; and a message to it and back."""
    started = time.perf_counter()
    with pool.start(
        "candidate", "kernelwright.kernelbench.evaluator.processes.worker:serve", "bench"
    ) as worker:
        worker.request(_NOTHING, 60)
        first = time.perf_counter() - started
        times = []
        for _ in range(20):
            started = time.perf_counter()
            worker.request(_NOTHING, 60)
            times.append(time.perf_counter() - started)
    message = statistics.median(times)
    return 1e3 * (first - message), 1e3 * message


def _times(ratio: float | None) -> str:
    return f"{ratio:.0f}" if ratio else "-"


def _seconds(value: object) -> str:
    return f"{value:.4g} s" if isinstance(value, float) else "-"


def _overhead(evaluator: LocalEvaluator, task: Task) -> tuple[str, ...]:
    """The second evaluation of a task, as in a run: oracle and baselines are up."""
    for _ in range(2):
        evaluation: Evaluation = evaluator.evaluate(task, itself(task))
    s = evaluation.stages
    share = (s.total_s - s.build_s - s.kernel_s) / s.total_s
    times = (s.total_s, s.build_s, s.verify_s, s.time_s, s.kernel_s)
    return (task.id, *(f"{value:.2f} s" for value in times), f"{100 * share:.0f}%")
