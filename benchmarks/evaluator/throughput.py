"""Throughput of a batch of candidates: one by one with `kernelwright evaluate`, and in a pool.

    python -m benchmarks throughput

Of every three candidates one is new and correct, one fails early (it does not parse, compile or load), and
one repeats a correct one. A correct one compiles a kernel for about a second. Against eager, with
`--effort quick`; one by one, nothing is cached. Machine: CPU, quiet. Time: 27 minutes. Writes
cpu/throughput.md.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.evaluator.slow_build import correct, cpp_candidate, kernel
from benchmarks.publishing import log, publish
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import EAGER, QUICK, EvaluationPool, Protocol, Referee
from kernelwright.kernelbench.records import Candidate, Evaluation, Task

_TASKS = ("builtin:level1/gelu_tanh", "builtin:level1/rms_norm", "builtin:level2/linear_gelu_layer_norm")


def run(count: Annotated[int, typer.Option(help="Number of candidates.")] = 100) -> None:
    tasks = sources.resolve(list(_TASKS))
    batch = [_candidate(tasks[number // 3 % len(tasks)], number) for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        protocol = Protocol(effort=QUICK)
        with (
            Referee.start(cache=Path(folder), protocol=protocol) as evaluator,
            EvaluationPool(evaluator) as pool,
        ):
            futures = [pool.submit(task, candidate, EAGER) for task, candidate in batch]
            in_pool = [future.result().verdict for future in futures]
            slots, machine = pool.slots, evaluator.target.fingerprint
        pool_s = time.monotonic() - started
    log(f"in a pool: {pool_s:.0f} s")
    started = time.monotonic()
    alone = []
    for number, (task, candidate) in enumerate(batch, 1):
        alone.append(_evaluated_alone(task, candidate))
        log(f"[{number}/{count}] {task.id}: {alone[-1]}, {time.monotonic() - started:.0f} s so far")
    alone_s = time.monotonic() - started
    differing = sum(a != b for a, b in zip(in_pool, alone, strict=True))
    rows = [
        ("one by one, nothing cached", f"{alone_s:.0f} s", f"{3600 * count / alone_s:.0f}", "1.0"),
        (f"a pool of {slots} slots", f"{pool_s:.0f} s", f"{3600 * count / pool_s:.0f}",
         f"{alone_s / pool_s:.1f}"),
        ("verdicts that differ", f"{differing}", "", ""),
    ]  # fmt: skip
    publish("throughput", f"{count} candidates", ("", "time", "an hour", "times as many"), rows, machine)


def _candidate(task: Task, number: int) -> tuple[Task, Candidate]:
    triple, kind = divmod(number, 3)
    if kind == 1:
        not_cpp = kernel(number, ended="not C++")
        broken = ("def (", not_cpp, "raise ValueError('no such flag')")[triple % 3]
        return task, cpp_candidate(f"{broken}\n# {number}\n")
    original = 3 * triple
    if kind == 2:  # repeats the correct one of this triple, or of an earlier triple of the same task
        original -= 9 * (triple % (triple // 3 + 1))
    return task, correct(task, original)


def _evaluated_alone(task: Task, candidate: Candidate) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "candidate.py"
        file.write_text(candidate.source)
        command = [sys.executable, "-m", "kernelwright", "evaluate", task.id, str(file)]
        command += ["--baseline", "eager", "--effort", "quick", "--json"]
        environment = {**os.environ, "KERNELWRIGHT_HOME": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return Evaluation.model_validate_json(done.stdout).verdict
