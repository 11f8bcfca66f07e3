"""Many evaluations at a time: what they gain, and what a neighbour does to a timing."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.agent.bench.publishing import itself, log, publish
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import EAGER, QUICK, EvaluationPool, Protocol, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Candidate, Evaluation, Interval, Task

_TASKS = ("builtin:level1/gelu_tanh", "builtin:level1/rms_norm", "builtin:level2/linear_gelu_layer_norm")
_KERNEL = """
from kernelwright import jit
library = jit.compile_cpp(r'''
#include <cmath>
constexpr unsigned step(unsigned seed) {
    unsigned x = seed;
    for (int i = 0; i < 200; ++i)
        for (int j = 0; j < 1000; ++j) x = x * 1664525u + 1013904223u;
    return x;
}
extern "C" void unused(int* sum) { constexpr unsigned table = step(NUMBER); *sum = table; ENDED }
''')
"""  # about a second of compiling
_COMPILED = "template<int N> struct F { static const int v = F<N-1>::v + 1; };\n"
_COMPILED += "template<> struct F<0> { static const int v = 0; };\nint main() { return F<800>::v; }\n"


def throughput(count: Annotated[int, typer.Option(help="Candidates.")] = 100) -> None:
    """A batch of candidates one by one with `kernelwright evaluate`, nothing cached, and in a pool.

    Of three, one is new and correct, one fails early (it does not parse, compile or load), and one repeats
    a correct one. A correct one compiles a kernel for about a second. Against eager, with `--effort quick`.
    """
    tasks = sources.resolve(list(_TASKS))
    batch = [_candidate(tasks[number // 3 % len(tasks)], number) for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        protocol = Protocol(effort=QUICK)
        with (
            Referee.start(cache=Path(folder), protocol=protocol) as evaluator,
            EvaluationPool(evaluator) as pool,
        ):
            asked = [pool.submit(task, candidate, EAGER) for task, candidate in batch]
            found = [future.result().verdict for future in asked]
            slots, mark = pool.slots, evaluator.target.fingerprint
        pooled_s = time.monotonic() - started
    log(f"in a pool: {pooled_s:.0f} s")
    started = time.monotonic()
    alone = []
    for number, (task, candidate) in enumerate(batch, 1):
        alone.append(_evaluated_alone(task, candidate))
        log(f"[{number}/{count}] {task.id}: {alone[-1]}, {time.monotonic() - started:.0f} s so far")
    serial_s = time.monotonic() - started
    differing = sum(a != b for a, b in zip(found, alone, strict=True))
    rows = [
        ("one by one, nothing cached", f"{serial_s:.0f} s", f"{3600 * count / serial_s:.0f}", "1.0"),
        (f"a pool of {slots} slots", f"{pooled_s:.0f} s", f"{3600 * count / pooled_s:.0f}",
         f"{serial_s / pooled_s:.1f}"),
        ("verdicts that differ", f"{differing}", "", ""),
    ]  # fmt: skip
    publish("throughput", f"{count} candidates", ("", "time", "an hour", "times as many"), rows, mark)


def _candidate(task: Task, number: int) -> tuple[Task, Candidate]:
    triple, kind = divmod(number, 3)
    if kind == 1:
        broken = ("def (", _kernel(number, ended="not C++"), "raise ValueError('no such flag')")[triple % 3]
        return task, Candidate(source=f"{broken}\n# {number}\n", language="cpp", author="bench")
    name = 3 * triple
    if kind == 2:  # that of this triple, or of an earlier one of the same task
        name -= 9 * (triple % (triple // 3 + 1))
    return task, Candidate(source=_kernel(name) + itself(task).source, language="cpp", author="bench")


def _kernel(number: int, ended: str = "") -> str:
    return _KERNEL.replace("NUMBER", str(number)).replace("ENDED", ended)


def _evaluated_alone(task: Task, candidate: Candidate) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "candidate.py"
        file.write_text(candidate.source)
        command = [sys.executable, "-m", "kernelwright", "evaluate", task.id, str(file)]
        command += ["--baseline", "eager", "--effort", "quick", "--json"]
        environment = {**os.environ, "KERNELWRIGHT_HOME": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return Evaluation.model_validate_json(done.stdout).verdict


def disturbance(repeats: Annotated[int, typer.Option(help="Evaluations each.")] = 3) -> None:
    """What a compiler beside it does to a timing, and whether a pool keeps it away.

    A reference against itself: alone, with a compiler running all the while, and in a pool of two slots of
    which the other one builds all the while.
    """
    task = sources.resolve(["builtin:level1/gelu_tanh"])[0]
    with Referee.start(cache=cache_folder()) as evaluator:

        def timed() -> list[Evaluation]:
            return [evaluator.evaluate(task, itself(task), EAGER) for _ in range(repeats)]

        rows = [_summed_up("alone", timed())]
        with _compiling():
            rows.append(_summed_up("a compiler beside it", timed()))
        with EvaluationPool(evaluator, slots=2) as pool:
            builds = [_kernel(time.time_ns() % 10**9 + n) + "raise SyntaxError\n" for n in range(500)]
            asked = [
                pool.submit(task, Candidate(source=source, language="cpp", author="bench"), client="builds")
                for source in builds
            ]
            found = []
            for number in range(repeats):
                candidate = itself(task).model_copy(update={"source": f"{itself(task).source}\n# {number}\n"})
                found.append(pool.submit(task, candidate, EAGER, client="timed").result())
            log(f"built meanwhile: {sum(future.done() for future in asked)}")
            for future in asked:
                future.cancel()
        rows.append(_summed_up("in a pool whose other slot builds", found))
        header = ("", "time of a call", "its interval", "speedup over itself", "its interval")
        mark = evaluator.target.fingerprint
    publish("disturbance", "What a compiler does to a timing beside it", header, rows, mark)


def _summed_up(what: str, evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    """Medians over evaluations; intervals as shares to either side."""
    times = [evaluation.timing.candidate_us for evaluation in evaluations if evaluation.timing]
    speedups = [e.speedup.eager for e in evaluations if e.speedup and e.speedup.eager]

    def side(intervals: Sequence[Interval]) -> str:
        widths = [(found.high - found.low) / 2 / found.median for found in intervals]
        return f"±{100 * statistics.median(widths):.1f}%"

    time_ms = statistics.median(found.median for found in times) / 1e3
    ratio = statistics.median(found.median for found in speedups)
    return what, f"{time_ms:.2f} ms", side(times), f"{ratio:.3f}", side(speedups)


@contextmanager
def _compiling() -> Iterator[None]:
    """A compiler at work on one CPU."""
    loop = 'while :; do printf %s "$SOURCE" | ${CXX:-g++} -O2 -x c++ -fsyntax-only -; done'
    environment = {**os.environ, "SOURCE": _COMPILED}
    process = subprocess.Popen(["sh", "-c", loop], env=environment, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
