"""Kernels of the builtin coder that are verified and not timed, for what asks only whether they are right."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.publishing import log
from kernelwright.agent.options.evaluation import EvaluationOptions
from kernelwright.agent.options.run import TaskOptions
from kernelwright.agent.pooled_coder import PooledBuiltinCoder
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.evaluator import CHECK
from kernelwright.kernelbench.records import Record
from kernelwright.kernelbench.version import kernelwright_version
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.store.folder import write_atomically


class CheckedKernel(Record):
    """The first kernel of a task: its verdict, and the kernel if that is right."""

    task: str
    verdict: str
    reason: str
    winner: Winner | None = None


def verified(tasks: Sequence[Path], folder: Path, command: str) -> list[CheckedKernel]:
    """Write a kernel for each task and verify it at all sizes; those in `folder` already are read there.

    `command`: what the kernels' provenance says. Raises TaskError for a task that fails itself.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {path: folder / f"{path.stem}.json" for path in tasks}
    if left := [path for path, file in files.items() if not file.exists()]:
        options = EvaluationOptions(baselines=["eager"]).resolved()
        with options.evaluator() as evaluator, ProfilingPool(evaluator, slots=1, profilers="none") as pool:
            coder = PooledBuiltinCoder(pool, "cpp")
            for path in left:
                found = _checked(path, pool, coder, command)
                log(f"{path.stem}: {found.verdict}, {found.reason}")
                write_atomically(files[path], found.model_dump_json(indent=1, by_alias=True) + "\n")
    return [CheckedKernel.model_validate_json(file.read_text()) for file in files.values()]


def _checked(path: Path, pool: ProfilingPool, coder: PooledBuiltinCoder, command: str) -> CheckedKernel:
    [task] = TaskOptions(tasks=(str(path),)).resolve("cpu")
    candidate = coder.propose(task, (), None)
    found = pool.evaluate(task, candidate, CHECK)
    winner = Winner(
        task=task,
        candidate=candidate,
        evaluation=found,
        command=command,
        kernelwright=kernelwright_version(),
        environment=None,
    )
    return CheckedKernel(
        task=path.stem, verdict=found.verdict, reason=found.reason, winner=winner if found.right else None
    )
