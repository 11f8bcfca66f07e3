"""The builtin coder's CUDA C++ on the suite, without a GPU: right in emulation or not, and what chips take.

Its kernels are made for one size, so each task is tried at a smaller one, and built at that.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.agent.bench.publishing import in_words, log
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator import LocalEvaluator
from kernelwright.kernelbench.evaluator.emulated import RIGHT
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Evaluation, Task, Verdict
from kernelwright.kernelbench.sources.smaller import changed, smaller
from kernelwright.kernelbench.without_gpu import DEFAULT_CHIPS, start_evaluator
from kernelwright.results.store.folder import write_atomically

PUBLISHED = Path("results") / "published" / "static"
LANGUAGE = "cuda"
_PRODUCT = 1 << 15  # of a task's constants
_ROWS = Path("runs") / "bench-emulated.jsonl"  # a line a task, as they come; what is there is not asked again
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


def emulated(
    levels: Annotated[list[int] | None, typer.Argument(help="1, 2, 3: 1 and 2 by default.")] = None,
) -> None:
    """The builtin coder's CUDA C++ kernels, emulated on the suite's tasks, smaller, and built for chips."""
    known = [json.loads(line) for line in _ROWS.read_text().splitlines()] if _ROWS.exists() else []
    rows = {row[0]: row for row in known}
    tasks = [t for level in levels or (1, 2) for t in sources.resolve([f"builtin:level{level}/*"])]
    _ROWS.parent.mkdir(exist_ok=True)
    with start_evaluator(cache=cache_folder(), chips=DEFAULT_CHIPS) as evaluator, _ROWS.open("a") as file:
        coder = BuiltinCoder(partial(trace, evaluator.sessions.pool), LANGUAGE)
        for number, task in enumerate(tasks, 1):
            if task.id not in rows:
                rows[task.id] = _row(evaluator, coder, task)
                file.write(json.dumps(rows[task.id]) + "\n")
                file.flush()
            log(f"{number}/{len(tasks)}  {' | '.join(rows[task.id])}")
        mark = evaluator.target.fingerprint
    chosen = [rows[task.id] for task in tasks]
    own = [row for row in chosen if row[1] != "torch alone"]
    chips = ", ".join(DEFAULT_CHIPS)
    right = sum(row[1] == Verdict.unmeasured for row in own)
    lines = [
        "# CUDA C++ by the builtin coder, in emulation",
        "",
        f"Made by `python -m kernelwright.agent.bench emulated` on {in_words(mark)}. "
        "Nothing here has run on a GPU.",
        "",
        f"{right} of {len(own)} tasks with kernels of its own are right in emulation, at sizes whose "
        f"product is about {_PRODUCT}; {len(chosen) - len(own)} are left to torch. Built for {chips}: "
        "registers are the most of any kernel and chip.",
        "",
        *("| " + " | ".join(row) + " |" for row in (_HEADER, ["---"] * len(_HEADER), *chosen)),
        "",
    ]
    write_atomically(PUBLISHED / "cuda.md", "\n".join(lines))


def _row(evaluator: LocalEvaluator, coder: BuiltinCoder, task: Task) -> list[str]:
    found: tuple[Task, Evaluation, tuple[str, ...], str] | None = None
    for small in _sizes(task):
        try:
            candidate = coder.propose(small, [], None)
            if candidate.language != LANGUAGE:
                return [task.id, "torch alone", *["—"] * 5, _left(candidate.source)]
            evaluation = evaluator.evaluate(small, candidate)
        except TaskError:  # the reference is not defined at such sizes
            continue
        found = small, evaluation, candidate.kernels, candidate.source
        break
    if found is None:
        return [task.id, "no smaller size", *["—"] * 6]
    small, evaluation, kernels, source = found
    log(f"{task.id} at {changed(task, small) or 'its own sizes'}: {evaluation.reason}")
    built = [kernel for build in evaluation.builds for kernel in build.kernels]
    correctness = evaluation.correctness
    right = evaluation.reason.startswith(RIGHT)
    error = "—"
    if correctness is not None and correctness.error is not None and correctness.reference_error is not None:
        error = f"{correctness.error:.2g} / {correctness.reference_error:.2g}"
    return [
        task.id,
        str(evaluation.verdict) if right or evaluation.verdict is not Verdict.unmeasured else "not checked",
        error,
        ", ".join(f"`{name}`" for name in kernels),
        str(max((kernel.registers for kernel in built), default=0)),
        str(sum(kernel.spills for kernel in built)),
        ", ".join(
            f"{build.chip} {'yes' if build.ok else build.problem or 'no'}" for build in evaluation.builds
        ),
        _left(source),
    ]


def _sizes(task: Task) -> Iterator[Task]:
    for alternatives in smaller(task, _PRODUCT):
        yield from alternatives
    yield task


def _left(source: str) -> str:
    """What the candidate's docstring says is left to torch."""
    for line in source.splitlines():
        if line.startswith("Left to torch: "):
            return line.removeprefix("Left to torch: ").rstrip(".")
    return "" if "Nothing is left to torch" in source else "all of it"
