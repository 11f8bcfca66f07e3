"""`kernelwright report` and `metrics`: results of a run, and metrics that correlate with the time."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.profiling.selection import MOST_KEPT, place
from kernelwright.results.archives import kernelbench_runs
from kernelwright.results.lessons import metrics as looked_at
from kernelwright.results.report import round_text
from kernelwright.results.report import training as training_report
from kernelwright.results.report.contents import RunReport
from kernelwright.results.report.formats import ReportFormat, console, render, show
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import write_atomically
from kernelwright.results.store.training import Training, holds_training


def report(
    run: Annotated[
        str, typer.Argument(help="A run folder, a training folder or a database URL.", metavar="RUN")
    ],
    task: Annotated[
        str | None,
        typer.Argument(
            help="A task of the run, by its id or the end of it: show its rounds.",
            metavar="TASK",
            show_default=False,
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--round", help="Show this round of TASK with its prompts and replies.", metavar="N"),
    ] = None,
    format: Annotated[ReportFormat, typer.Option(help="Format of the report.")] = ReportFormat.table,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the report to this file instead of the screen; of kernelbench, a folder."),
    ] = None,
) -> None:
    """Show the results of a run, of one of its tasks or rounds, or the course of a training."""
    if task is None and number is not None:
        raise UsageError("--round is of a task", "give one: kernelwright report RUN TASK --round N")
    content: RunReport | Training
    if holds_training(run):
        if task is not None:
            raise UsageError(f"{run} is a training, which has no tasks to report", f"leave out {task}")
        content = Training.read(Path(run))
    else:
        with RunDatabase.open(run, read_only=True) as database:
            content = RunReport.read(database)
    if format == ReportFormat.kernelbench and task is None and not isinstance(content, Training):
        _run_folders(content, output)
    elif output is not None:
        try:
            write_atomically(output, _text(content, task, number, format))
        except OSError as error:
            raise StorageError(
                f"{output} cannot be written ({error.strerror or error})", "choose another --output"
            ) from error
    elif format == ReportFormat.table:
        if isinstance(content, Training):
            console().print(training_report.table(content))
        elif task is not None:
            round_text.show(content, task, number)
        else:
            show(content)
    else:
        sys.stdout.write(_text(content, task, number, format))


def _run_folders(content: RunReport, output: Path | None) -> None:
    """Write run folders of KernelBench. Raises UsageError, StorageError."""
    if output is None:
        raise UsageError("the format kernelbench is a folder", "give the name of a new one: --output FOLDER")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} exists already", "give the name of a new folder: --output FOLDER")
    judged = kernelbench_runs.samples(content)
    if not judged:
        raise UsageError(
            f"{content.where} has no kernel for a problem of KernelBench", "choose another --format"
        )
    for folder in kernelbench_runs.write(judged, output):
        console().print(f"Written: {folder}", markup=False, highlight=False, soft_wrap=True)


def _text(content: RunReport | Training, task: str | None, number: int | None, format: ReportFormat) -> str:
    if isinstance(content, Training):
        return training_report.render(content, format)
    if task is not None:
        return round_text.render(content, task, number, format)
    return render(content, format)


def metrics(
    runs: Annotated[list[str], typer.Argument(help="Run folders or database URLs.", metavar="RUN...")],
    keep: Annotated[int, typer.Option(help="Number of metrics to keep at most.", min=1)] = MOST_KEPT,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the selection to this file instead of the cache that profiles read."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank hardware metrics by how well they correlate with the time, over the candidates of these runs.

    Within each task candidates are ranked by their time and by each metric; metrics whose rank correlation
    has the same sign in all tasks are kept, the strongest first. Profiles and language-model judges then use
    these instead of the default ones.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(RunDatabase.open(run, read_only=True)) for run in runs]
        selection = looked_at.selected(opened, keep)
    file = output or place(cache_folder(), selection.kind)
    try:
        write_atomically(file, selection.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise StorageError(
            f"{file} cannot be written ({error.strerror or error})", "choose another --output"
        ) from error
    if as_json:
        print(json.dumps({"schema": 1, "file": str(file), **selection.model_dump(mode="json")}))
        return
    console().print(looked_at.table(selection))
    for line in (*looked_at.caveats(selection), f"Kept {len(selection.kept)}; written to {file}."):
        Console(highlight=False).print(line, markup=False, soft_wrap=True)
