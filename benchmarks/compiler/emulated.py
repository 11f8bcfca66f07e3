"""The builtin coder's CUDA C++ on the suite without a GPU: checked in emulation, and built for chips.

    python -m benchmarks emulated [LEVEL...]

Kernels are written for one size, so each task is tried at a smaller one, and built at that. Rows are kept in
runs/bench-emulated.jsonl; delete it to measure again. Machine: CPU with the `dev` extra. Time: two hours
(estimate). Writes static/cuda.md.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.publishing import STATIC, log, made_by, table
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator import LocalEvaluator
from kernelwright.kernelbench.evaluator.emulated import RIGHT
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from kernelwright.kernelbench.sources.smaller import changed, smaller
from kernelwright.kernelbench.without_gpu import DEFAULT_CHIPS, start_evaluator
from kernelwright.results.store.folder import write_atomically

_LANGUAGE = "cuda"
_PRODUCT = 1 << 15  # of a task's constants
_ROWS = Path("runs") / "bench-emulated.jsonl"  # a line a task
_NONE = "—"
_TORCH_ALONE = "torch alone"
_HEADER = (
    "task",
    "verdict",
    "error / eager's, of the budget",
    "kernels",
    "registers",
    "spills",
    "builds",
    "left to torch",
)


def run(
    levels: Annotated[list[int] | None, typer.Argument(help="Levels 1, 2, 3; 1 and 2 by default.")] = None,
) -> None:
    measured = [json.loads(line) for line in _ROWS.read_text().splitlines()] if _ROWS.exists() else []
    rows = {row[0]: row for row in measured}
    tasks = [t for level in levels or (1, 2) for t in sources.resolve([f"builtin:level{level}/*"])]
    _ROWS.parent.mkdir(exist_ok=True)
    with start_evaluator(cache=cache_folder(), chips=DEFAULT_CHIPS) as evaluator, _ROWS.open("a") as file:
        coder = BuiltinCoder(partial(trace, evaluator.sessions.pool), _LANGUAGE)
        for number, task in enumerate(tasks, 1):
            if task.id not in rows:
                rows[task.id] = _row(evaluator, coder, task)
                file.write(json.dumps(rows[task.id]) + "\n")
                file.flush()
            log(f"{number}/{len(tasks)}  {' | '.join(rows[task.id])}")
        machine = evaluator.target.fingerprint
    chosen = [rows[task.id] for task in tasks]
    own = [row for row in chosen if row[1] != _TORCH_ALONE]
    correct = sum(row[1] == Verdict.unmeasured for row in own)
    lines = [
        "# CUDA C++ by the builtin coder, in emulation",
        "",
        f"{made_by('emulated', machine)} Nothing here has run on a GPU.",
        "",
        f"{correct} of {len(own)} tasks with kernels of its own are right in emulation, at sizes whose "
        f"product is about {_PRODUCT}; {len(chosen) - len(own)} are left to torch. Built for "
        f"{', '.join(DEFAULT_CHIPS)}: registers are the most of any kernel and chip.",
        "",
        *table(_HEADER, chosen),
        "",
    ]
    write_atomically(STATIC / "cuda.md", "\n".join(lines))


def _row(evaluator: LocalEvaluator, coder: BuiltinCoder, task: Task) -> list[str]:
    """Return the row of a task, at the first of its smaller sizes at which the reference is defined."""
    for small in _sizes(task):
        try:
            candidate = coder.propose(small, [], None)
            if candidate.language != _LANGUAGE:
                return [task.id, _TORCH_ALONE, *[_NONE] * 5, _left_to_torch(candidate.source)]
            evaluation = evaluator.evaluate(small, candidate)
        except TaskError:  # the reference is not defined at such sizes
            continue
        log(f"{task.id} at {changed(task, small) or 'its own sizes'}: {evaluation.reason}")
        return [task.id, *_cells(evaluation, candidate)]
    return [task.id, "no smaller size", *[_NONE] * 6]


def _cells(evaluation: Evaluation, candidate: Candidate) -> list[str]:
    built = [kernel for build in evaluation.builds for kernel in build.kernels]
    checked = evaluation.reason.startswith(RIGHT) or evaluation.verdict is not Verdict.unmeasured
    error, correctness = _NONE, evaluation.correctness
    if correctness is not None and correctness.error is not None and correctness.reference_error is not None:
        error = f"{correctness.error:.2g} / {correctness.reference_error:.2g}"
    return [
        str(evaluation.verdict) if checked else "not checked",
        error,
        ", ".join(f"`{name}`" for name in candidate.kernels),
        str(max((kernel.registers for kernel in built), default=0)),
        str(sum(kernel.spills for kernel in built)),
        ", ".join(
            f"{build.chip} {'yes' if build.ok else build.problem or 'no'}" for build in evaluation.builds
        ),
        _left_to_torch(candidate.source),
    ]


def _sizes(task: Task) -> Iterator[Task]:
    for alternatives in smaller(task, _PRODUCT):
        yield from alternatives
    yield task


def _left_to_torch(source: str) -> str:
    """Operators left to torch, from the docstring of a candidate."""
    for line in source.splitlines():
        if line.startswith("Left to torch: "):
            return line.removeprefix("Left to torch: ").rstrip(".")
    return "" if "Nothing is left to torch" in source else "all of it"
