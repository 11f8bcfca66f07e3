"""Progress of a run, and its results once it ends.

On a terminal a bar with what is going on now, and the status below it; elsewhere, such as in a log file, a
line for each event, and one of the status a minute.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kernelwright.agent.display.status import RunStatus
from kernelwright.agent.options.run import RunConfig, Shown
from kernelwright.results.outputs import write_outputs
from kernelwright.results.report.closing import closing_lines
from kernelwright.results.report.contents import RunReport
from kernelwright.results.report.formats import show
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder
from kernelwright.results.store.records import TaskState

log = Console(stderr=True, highlight=False)
_BAR = 12  # characters
_EVERY_S = 60.0  # between lines of the status in a log
_A_SECOND = 2  # how often a terminal is drawn again; timing shares the cores with it


class RunProgress:
    """Shown to nobody; see `ShownProgress`."""

    def say(self, line: str) -> None:
        """Tell of an event."""

    def watch(self, status: Callable[[], RunStatus]) -> None:
        """Show this status from now on."""


class ShownProgress(RunProgress):
    """Shown on standard error."""

    def __init__(self) -> None:
        self.status: Callable[[], RunStatus] | None = None
        self._spinner = Spinner("dots")

    def say(self, line: str) -> None:
        log.print(f"{datetime.now():%H:%M:%S} {line}", markup=False, soft_wrap=True)

    def watch(self, status: Callable[[], RunStatus]) -> None:
        self.status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.status is None:
            return
        now = self.status()
        bar = ProgressBar(total=1.0, completed=now.share, width=_BAR)
        took = str(timedelta(seconds=int(now.took_s)))
        first = Table.grid(padding=(0, 1))
        for least in (1, _BAR, len(took)):
            first.add_column(no_wrap=True, min_width=least)
        doing = Text(now.now)
        doing.truncate(max(1, options.max_width - (_BAR + len(took) + 5)), overflow="ellipsis")
        first.add_row(self._spinner, bar, took, doing)
        yield first
        for line in now.lines(options.max_width - 2):
            yield Text(f"  {line}", "dim", no_wrap=True, overflow="ellipsis")


def opening_line(config: RunConfig, url: str | None, tasks: int, folder: Path) -> str:
    """Return the line that a run begins with: who writes, what is worked on, what may be spent, where."""
    model, options, limits = config.model, config.search, config.budget.run
    who = model.program if model.coder == "command" else "builtin coder"
    if model.model is not None:
        parts = urlsplit(url or "https://api.openai.com")
        host = f"{parts.hostname}:{parts.port}" if parts.port is not None else str(parts.hostname)
        judge = f", judge {model.judge_model}" if model.judge_model not in (None, model.model) else ""
        who = f"{model.model}{judge} at {host}"
    spend = [
        f"${limits.usd:g}" if limits.usd is not None else "",
        f"{limits.tokens:,} tokens" if limits.tokens is not None else "",
        f"{limits.evaluations} evaluations" if limits.evaluations is not None else "",
        f"{limits.minutes:g} minutes" if limits.minutes is not None else "",
    ]
    budget = " and ".join(filter(None, spend))
    most = f"at most {budget}" if budget else "no limit of dollars" if model.model is not None else ""
    work = f"{tasks} task{'s' if tasks != 1 else ''}, {options.rounds} rounds each, {options.search}"
    on = " and ".join(config.evaluation.devices or (config.evaluation.device,))
    if config.evaluation.servers:
        on = f"{on} of {' and '.join(config.evaluation.servers)}"
    elif config.evaluation.cluster is not None:
        on = f"{on} of the Ray cluster"
    return " · ".join(filter(None, (who, f"{work}, on {on}", most, str(folder))))


@contextmanager
def reported(
    folder: RunFolder, database: RunDatabase, as_json: bool, shown: Shown = "results"
) -> Iterator[RunProgress]:
    """Show progress in the block; then print the results, which are written even if the block raises."""
    try:
        with nullcontext(RunProgress()) if shown == "nothing" else _shown() as progress:
            yield progress
    finally:
        summary = write_outputs(folder, database)
    if shown != "results":
        return
    report = RunReport.read(database)
    complete = all(entry.state is not TaskState.pending for entry in database.tasks())
    if as_json:
        print(summary.model_dump_json())
    else:
        show(report)
    for line in closing_lines(report, folder, complete):
        log.print(line, markup=False, soft_wrap=True)


@contextmanager
def _shown() -> Iterator[RunProgress]:
    progress = ShownProgress()
    if log.is_terminal:
        with Live(progress, console=log, transient=True, refresh_per_second=_A_SECOND):
            yield progress
        return
    ended = threading.Event()
    thread = threading.Thread(target=_log, args=(progress, ended), name="status", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()


def _log(progress: ShownProgress, ended: threading.Event) -> None:
    """Say the status every minute in which it has changed."""
    last = ""
    while not ended.wait(_EVERY_S):
        if progress.status is not None and (line := progress.status().line()) != last:
            progress.say(line)
            last = line
