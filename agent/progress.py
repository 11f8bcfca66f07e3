"""Progress of a run, and its results once it ends: a bar on a terminal, else a line for each event."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from kernelwright.results.outputs import write_outputs
from kernelwright.results.report.closing import closing_lines
from kernelwright.results.report.contents import RunReport
from kernelwright.results.report.formats import show
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder
from kernelwright.results.store.records import TaskState

_COLUMNS = (
    SpinnerColumn(),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TextColumn("{task.description}"),
)
log = Console(stderr=True, highlight=False)


class RunProgress:
    """Shown to nobody; see `ShownProgress`."""

    def say(self, line: str) -> None:
        """Tell of an event."""

    def begin(self, task: str) -> None:
        """Name a task that is being worked on now."""

    def done(self, tasks: int = 1) -> None:
        """Count tasks that need no more work."""


@dataclass
class ShownProgress(RunProgress):
    """Shown on standard error."""

    bar: Progress | None
    line: TaskID

    def say(self, line: str) -> None:
        log.print(f"{datetime.now():%H:%M:%S} {line}", markup=False, soft_wrap=True)

    def begin(self, task: str) -> None:
        if self.bar is not None:
            self.bar.update(self.line, description=task)

    def done(self, tasks: int = 1) -> None:
        if self.bar is not None:
            self.bar.advance(self.line, tasks)


@contextmanager
def reported(folder: RunFolder, database: RunDatabase, as_json: bool) -> Iterator[RunProgress]:
    """Show progress in the block; then print the results, which are written even if the block raises."""
    try:
        with _shown(len(database.tasks())) as progress:
            yield progress
    finally:
        summary = write_outputs(folder, database)
    report = RunReport.read(database)
    complete = all(entry.state is not TaskState.pending for entry in database.tasks())
    if as_json:
        print(summary.model_dump_json())
    else:
        show(report)
    for line in closing_lines(report, folder, complete):
        log.print(line, markup=False, soft_wrap=True)


@contextmanager
def _shown(total: int) -> Iterator[RunProgress]:
    if not log.is_terminal:
        yield ShownProgress(None, TaskID(0))
        return
    with Progress(*_COLUMNS, console=log, transient=True) as bar:
        yield ShownProgress(bar, bar.add_task("", total=total))
