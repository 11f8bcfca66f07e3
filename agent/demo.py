"""The command `demo`: one kernel, from the task to its speedup."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import MissingPrerequisite, StorageError
from kernelwright.kernelbench.evaluator import EAGER, SEARCH, LocalEvaluator, Protocol, Referee
from kernelwright.kernelbench.machine import cache_folder, compiler
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from kernelwright.results.formatting import with_bounds
from kernelwright.results.store.folder import write_atomically

TASK = "builtin:level1/rms_norm"

log = Console(stderr=True, highlight=False)


def demo(
    out: Annotated[Path, typer.Option(help="Write the kernel to this file.")] = Path("rms_norm_kernel.py"),
) -> int:
    """Optimize one built-in task in about twenty seconds, to see what kernelwright does.

    The builtin coder writes a C++ kernel for RMS normalization, which is verified and timed in a sandbox.
    """
    if compiler() is None:
        raise MissingPrerequisite(
            "C++ kernels need a C++ compiler",
            "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX",
        )
    (task,) = sources.resolve([TASK])
    protocol = Protocol(effort=SEARCH)
    with (
        log.status(f"Optimizing {TASK}"),
        Referee.start(cache=cache_folder(), protocol=protocol) as evaluator,
    ):
        candidate = _written(task, evaluator, out)
        evaluation = evaluator.evaluate(task, candidate, EAGER)
    for line in lines(task, candidate, evaluation, out):
        print(line)
    return 0 if evaluation.verdict is Verdict.correct else 1


def _written(task: Task, evaluator: LocalEvaluator, out: Path) -> Candidate:
    """Write the builtin coder's candidate to the file, and return it. Raises StorageError."""
    from kernelwright.agent.builtin.coder import BuiltinCoder
    from kernelwright.agent.tracing import trace

    candidate = BuiltinCoder(lambda traced: trace(evaluator.sessions.pool, traced)).propose(task, [], None)
    try:
        write_atomically(out, candidate.source)
    except OSError as error:
        raise StorageError(
            f"{out} cannot be written ({error.strerror or error})", "choose another --out"
        ) from error
    return candidate


def lines(task: Task, candidate: Candidate, evaluation: Evaluation, out: Path) -> list[str]:
    """Return the task, the verdict, the speedup, the file of the kernel and the next command, one a line."""
    said = [f"Task      {task.id}", f"Verdict   {evaluation.verdict}: {evaluation.reason}"]
    speedup = evaluation.speedup.eager if evaluation.speedup is not None else None
    if speedup is not None:
        said.append(f"Speedup   {with_bounds(speedup)} over eager PyTorch")
    return [
        *said,
        f"Kernel    {out}, {candidate.language} by the builtin coder",
        "Next      kernelwright run builtin:level1/softmax, or a file with a task of your own",
    ]
