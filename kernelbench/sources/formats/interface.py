"""The protocol of a format that tasks, or kernels for them, are kept in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class TaskFile:
    """A task as it was read: a file in KernelBench's format, which needs no other file of the project."""

    name: str
    source: str
    notes: tuple[str, ...] = ()  # what its format has and the file has not, a sentence each


class TaskFormat(Protocol):
    """A way to keep tasks, or kernels for them, in files. All methods but `*_paths` raise UsageError."""

    @property
    def name(self) -> str: ...

    def task_paths(self, path: Path) -> Sequence[Path]:
        """Return the file of each task that lies at a path; none if it is of another format.

        A file of several tasks is followed by a colon and a name of the task within it.
        """
        ...

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        """Return the task of one of `task_paths`; `sizes`: literals for axes that no workload gives."""
        ...

    def holds_candidate(self, path: Path) -> bool:
        """Return whether a file is a kernel of this format."""
        ...

    def candidate(self, path: Path) -> str:
        """Return a file with `ModelNew` that calls the kernel."""
        ...
