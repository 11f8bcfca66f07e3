"""Effect of a compiler beside a timing, and of the pool that keeps it away.

    python -m benchmarks disturbance

A reference is timed against itself: alone, with a compiler running all the while, and in a pool of two slots
of which the other one builds all the while. Machine: CPU with two cores, quiet. Time: 4 minutes (estimate).
Writes cpu/disturbance.md.
"""

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from benchmarks.evaluator.accuracy import half_width
from benchmarks.evaluator.slow_build import cpp_candidate, kernel
from benchmarks.publishing import log, publish
from benchmarks.references import itself
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import EAGER, EvaluationPool, LocalEvaluator, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Evaluation, Interval, Task

_BUILDS = 500  # more than the other slot gets through meanwhile
_COMPILED = (
    "template<int N> struct F { static const int v = F<N-1>::v + 1; };\n"
    "template<> struct F<0> { static const int v = 0; };\n"
    "int main() { return F<800>::v; }\n"
)


def run(repeats: Annotated[int, typer.Option(help="Evaluations of each kind.")] = 3) -> None:
    [task] = sources.resolve(["builtin:level1/gelu_tanh"])
    with Referee.start(cache=cache_folder()) as evaluator:

        def timed() -> list[Evaluation]:
            return [evaluator.evaluate(task, itself(task), EAGER) for _ in range(repeats)]

        rows = [_row("alone", timed())]
        with _compiling():
            rows.append(_row("a compiler beside it", timed()))
        rows.append(_row("in a pool whose other slot builds", _in_pool(evaluator, task, repeats)))
        machine = evaluator.target.fingerprint
    header = ("", "time of a call", "its interval", "speedup over itself", "its interval")
    publish("disturbance", "What a compiler does to a timing beside it", header, rows, machine)


def _in_pool(evaluator: LocalEvaluator, task: Task, repeats: int) -> list[Evaluation]:
    """Evaluate in a pool of two slots, the other of which compiles kernels that then fail to load."""
    new = time.time_ns() % 10**9  # not in the build cache
    with EvaluationPool(evaluator, slots=2) as pool:
        builds = [
            pool.submit(task, cpp_candidate(kernel(new + n) + "raise SyntaxError\n"), client="builds")
            for n in range(_BUILDS)
        ]
        timed = []
        for number in range(repeats):
            again = itself(task).model_copy(update={"source": f"{itself(task).source}\n# {number}\n"})
            timed.append(pool.submit(task, again, EAGER, client="timed").result())
        log(f"built meanwhile: {sum(future.done() for future in builds)}")
        for future in builds:
            future.cancel()
    return timed


def _row(label: str, evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    """Medians over evaluations; intervals as shares to either side."""
    times = [evaluation.timing.candidate_us for evaluation in evaluations if evaluation.timing]
    speedups = [e.speedup.eager for e in evaluations if e.speedup and e.speedup.eager]

    def width(intervals: Sequence[Interval]) -> str:
        return f"±{100 * statistics.median(map(half_width, intervals)):.1f}%"

    time_ms = statistics.median(interval.median for interval in times) / 1e3
    ratio = statistics.median(interval.median for interval in speedups)
    return label, f"{time_ms:.2f} ms", width(times), f"{ratio:.3f}", width(speedups)


@contextmanager
def _compiling() -> Iterator[None]:
    """Keep a compiler busy on one CPU."""
    loop = 'while :; do printf %s "$SOURCE" | ${CXX:-g++} -O2 -x c++ -fsyntax-only -; done'
    environment = {**os.environ, "SOURCE": _COMPILED}
    process = subprocess.Popen(["sh", "-c", loop], env=environment, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
