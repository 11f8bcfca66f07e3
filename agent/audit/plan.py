"""The plan of an audit: an archive's kernels with the tasks that they are for, kept beside its database."""

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import KernelwrightError, MissingPrerequisite, StorageError
from kernelwright.kernelbench.records import Record, Task
from kernelwright.results.archives.records import Archive, PublishedKernel
from kernelwright.results.store.folder import RunFolder

FILE = "archive.json"


class AuditPlan(Record):
    """Kernels, and ids of their tasks by the kernels' names; `without`: why a kernel has none."""

    archive: Archive
    tasks: dict[str, str]
    without: dict[str, str]

    @classmethod
    def of(cls, archive: Archive, find: Callable[[PublishedKernel], Task]) -> tuple["AuditPlan", list[Task]]:
        """Return the plan of an archive, and its tasks.

        `find` returns the task of a kernel. What it raises is the kernel's own trouble, but for
        MissingPrerequisite, which is raised.
        """
        known: dict[str, Task] = {}
        tasks: dict[str, str] = {}
        without: dict[str, str] = {}
        for kernel in archive.kernels:
            try:
                task = find(kernel)
            except MissingPrerequisite:
                raise
            except KernelwrightError as error:
                without[kernel.name] = error.message
                continue
            if known.setdefault(task.id, task) == task:
                tasks[kernel.name] = task.id
            else:
                without[kernel.name] = "its reference is not that of the first kernel for this problem"
        plan = cls(archive=archive, tasks=tasks, without=without)
        return plan, [known[id] for id in dict.fromkeys(tasks.values())]

    def write(self, folder: RunFolder) -> None:
        """Write it into the folder of an audit. Raises StorageError."""
        folder.write(folder.path / FILE, self.model_dump_json() + "\n")

    @classmethod
    def read(cls, folder: Path) -> "AuditPlan":
        """Read the plan of the audit in a folder. Raises StorageError."""
        file = folder / FILE
        try:
            return cls.model_validate_json(file.read_text())
        except (OSError, UnicodeDecodeError):
            raise StorageError(
                f"{folder} holds no audit: {FILE} is missing", "start one with --out"
            ) from None
        except ValidationError:
            raise StorageError(
                f"{file} is damaged, or of another version", "start another audit with --out"
            ) from None


class TaskFinder:
    """Finder of a kernel's task: its archive's own reference, or that of a checkout of KernelBench."""

    def __init__(self, suite: str, kernelbench_dir: Path | None, device: str) -> None:
        self._suite, self._kernelbench_dir, self._device = suite, kernelbench_dir, device
        self._found: dict[str, Task] = {}

    def __call__(self, kernel: PublishedKernel) -> Task:
        """Return the task of a kernel. Raises UsageError, or MissingPrerequisite without a checkout."""
        id = f"{self._suite}:{kernel.level}/{kernel.problem}"
        if kernel.reference:
            return sources.task_of_text(id, kernel.reference).model_copy(update={"level": kernel.level})
        if id not in self._found:
            (self._found[id],) = sources.resolve(
                [id], kernelbench_dir=self._kernelbench_dir, device=self._device
            )
        return self._found[id]
