"""Tasks that a server evaluates: the built-in ones and any text, or the allowed ones alone."""

from collections.abc import Sequence

from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.remote.wire import SentTask, ServedTask, TaskList


class NotAllowedError(UsageError):
    """A task that is not on the server's list."""


class TaskCatalogue:
    """Finder of the task that a request means. Thread-safe."""

    def __init__(self, tasks: Sequence[Task], any_source: bool) -> None:
        """`tasks`: those with a name here. `any_source`: texts of other tasks are evaluated too."""
        self._tasks = {task.id: task for task in tasks}
        self._allowed = {task.sha256 for task in tasks}
        self._any_source = any_source

    @property
    def listed(self) -> TaskList:
        return TaskList(
            any_source=self._any_source,
            tasks=tuple(
                ServedTask(id=task.id, level=task.level, sha256=task.sha256) for task in self._tasks.values()
            ),
        )

    def find(self, asked: str | SentTask) -> Task:
        """Return the task. Raises NotAllowedError, UsageError for a text that is no task."""
        if isinstance(asked, str):
            return self._named(asked)
        if asked.source is None:
            task = self._named(asked.name)
        else:
            sources.check(asked.source, asked.name)
            task = Task(id=asked.name, level=asked.level, source=asked.source, workload=asked.workload)
        task = task.model_copy(
            update={
                "source": sources.apply(task.source, asked.constants, asked.name),
                "overrides": {**task.overrides, **asked.constants},
                "precision": asked.precision,
            }
        )
        if not self._any_source and task.sha256 not in self._allowed:
            raise NotAllowedError(
                f"the task {asked.name} with this text and these constants is not allowed here", _FIX
            )
        return task

    def _named(self, name: str) -> Task:
        if name not in self._tasks:
            raise NotAllowedError(f"the task {name} is not known here", _FIX)
        return self._tasks[name]


_FIX = "GET /v1/tasks lists the tasks of this server"
