"""The reference against itself: how often the interval covers 1.0, and the error of the speedup.

    python -m benchmarks aa

Beside the referee stands a timer as many harnesses have it: both models in one process, three calls to warm
up, the mean of ten. Machine: CPU, quiet. Time: 15 minutes (estimate). Writes cpu/aa.md.
"""

import subprocess
import sys
import time
from typing import Annotated

import typer

from benchmarks.evaluator.accuracy import covering_one, errors, median_and_largest
from benchmarks.publishing import log, publish
from benchmarks.references import AA_TASKS, itself
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import EAGER, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Interval, Task

_HEADER = (
    "task",
    "median error",
    "largest",
    "interval covers 1",
    "mean of 10: median error",
    "largest",
)


def run(repeats: Annotated[int, typer.Option(help="Evaluations of each task.")] = 10) -> None:
    by_task: dict[str, tuple[list[Interval], list[float]]] = {}
    with Referee.start(cache=cache_folder()) as evaluator:
        for task in sources.resolve(AA_TASKS):
            speedups, naive = by_task[task.id] = [], []
            for _ in range(repeats):
                evaluation = evaluator.evaluate(task, itself(task), EAGER)
                assert evaluation.speedup and evaluation.speedup.eager, evaluation.reason
                last = evaluation.speedup.eager
                speedups.append(last)
                naive.append(_naive_speedup(task))
                interval = f"{last.median:.4f} [{last.low:.4f}, {last.high:.4f}]"
                log(f"{task.id}: {interval}, mean of 10 {naive[-1]:.4f}")
        machine = evaluator.target.fingerprint
    rows = [_row(name, *measured) for name, measured in by_task.items()]
    everything = [speedup for speedups, _ in by_task.values() for speedup in speedups]
    rows.append(_row("all", everything, [ratio for _, naive in by_task.values() for ratio in naive]))
    publish("aa", "The reference against itself: speedup - 1 without its sign", _HEADER, rows, machine)


def _row(name: str, speedups: list[Interval], naive: list[float]) -> tuple[str, ...]:
    referee = median_and_largest(errors(speedups))
    return (name, *referee, covering_one(speedups), *median_and_largest([abs(r - 1) for r in naive]))


def _naive_speedup(task: Task) -> float:
    """Speedup of a reference over itself by the naive timer, in a process of its own."""
    time.sleep(0.5)  # the workers of the evaluation before have ended by then
    command = [sys.executable, "-m", "benchmarks.evaluator.naive_timer"]
    done = subprocess.run(command, input=task.source, capture_output=True, text=True, check=True)
    return float(done.stdout)
