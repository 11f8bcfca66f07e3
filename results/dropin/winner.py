"""The kernel of a run that is to be exported."""

import math
from collections.abc import Sequence
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator.emulated import RIGHT
from kernelwright.kernelbench.languages import GPU_LANGUAGES, LANGUAGES
from kernelwright.kernelbench.records import Candidate, Environment, Evaluation, Record, Task
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import RecordedAttempt, TaskRun
from kernelwright.results.summary import best_attempt


class Winner(Record):
    """The best verified kernel of a task, with its provenance."""

    task: Task
    candidate: Candidate
    evaluation: Evaluation
    command: str  # that began the run
    kernelwright: str  # version
    environment: Environment | None

    @property
    def name(self) -> str:
        """Name of the kernel: the last part of its task's id."""
        last = self.task.id.replace(":", "/").rsplit("/", 1)[-1].removesuffix(".py")
        found = "".join(c if c.isalnum() else "_" for c in last)
        return found if found[:1].isalpha() else f"kernel_{found}"

    @property
    def device(self) -> str:
        """Kind of device that it runs on: "cuda" or "cpu"; "" for torch calls, which run on any."""
        language = self.candidate.language
        return "cuda" if language in GPU_LANGUAGES else "" if language == "torch" else "cpu"

    @property
    def verified_on(self) -> str:
        """Name of the processor that it was verified on, or what stood in for one."""
        target = self.evaluation.target
        if self.device == "cuda" and target.device == "cpu":
            here = LANGUAGES[self.candidate.language].here
            how = "an emulator of CUDA C++" if here == "in emulation" else here.removeprefix("in ")
            return f"{how}, on no GPU"
        return target.fingerprint.chip

    @classmethod
    def of(cls, run: Path | str, task: str) -> "Winner":
        """Return the winner of `task`: its id, or the end of one.

        Raises UsageError if it has no verified kernel, StorageError.
        """
        with RunDatabase.open(run, read_only=True) as database:
            found = _task(database.tasks(), task, str(run))
            attempts = database.attempts(found.task.id)
            about = database.run
        best = best_attempt(attempts) or best_without_gpu(attempts)
        if best is None:
            last = (
                f"the last verdict is {attempts[-1].evaluation.verdict}" if attempts else "nothing was tried"
            )
            raise UsageError(
                f"{found.task.id} has no correct kernel ({last})",
                "only verified kernels are exported: resume the run, or choose another task",
            )
        return cls(
            task=found.task,
            candidate=best.candidate,
            evaluation=best.evaluation,
            command=about.command,
            kernelwright=about.kernelwright,
            environment=about.environment,
        )

    @classmethod
    def all_of(cls, run: Path | str) -> "list[Winner]":
        """Return the winners of all tasks with a verified kernel.

        Raises UsageError if none has, StorageError.
        """
        with RunDatabase.open(run, read_only=True) as database:
            wholes = [entry.task.id for entry in database.tasks() if entry.task.part is None]
            found = {task: database.attempts(task) for task in wholes}
        tasks = [task for task, made in found.items() if best_attempt(made)]
        tasks = tasks or [task for task, made in found.items() if best_without_gpu(made)]
        if not tasks:
            raise UsageError(
                f"{run} has no correct kernel", "only verified kernels are exported: use another run"
            )
        return [cls.of(run, task) for task in tasks]


def best_without_gpu(attempts: Sequence[RecordedAttempt]) -> RecordedAttempt | None:
    """Return a kernel for a GPU that was right in emulation, where there is no GPU to time it on.

    It is the one with the least predicted time, and the last where none is predicted.
    """
    failed = {each.candidate.sha256 for each in attempts if each.confirms and not each.evaluation.right}
    right = [
        each
        for each in attempts
        if each.evaluation.right
        and each.evaluation.launched
        and each.evaluation.reason.startswith(RIGHT)
        and each.candidate.sha256 not in failed
    ]
    return min(reversed(right), key=lambda each: each.evaluation.predicted_us or math.inf, default=None)


def _task(tasks: Sequence[TaskRun], wanted: str, run: str) -> TaskRun:
    found = [t for t in tasks if t.task.id == wanted] or [t for t in tasks if t.task.id.endswith(wanted)]
    if len(found) != 1:
        names = ", ".join(t.task.id for t in found or tasks)
        raise UsageError(
            f"{run} has {'no task' if not found else 'several tasks'} {wanted}", f"choose one of: {names}"
        )
    return found[0]
