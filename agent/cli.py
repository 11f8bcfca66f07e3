"""The command `run`."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from agent.loop import deadline
from agent.run import Settings, carry_out
from kernelbench import sources
from kernelbench.cli import (
    Baselines,
    EffortName,
    Json,
    KernelbenchDir,
    Overrides,
    OwnKernels,
    check_protocol,
)
from kernelbench.errors import StorageError, UsageError
from kernelbench.evaluator import Evaluator, most_lanes
from kernelbench.machine import cache_folder
from kernelbench.records import Precision
from results.database import RunDatabase
from results.folder import RunFolder
from results.formats import Format, render
from results.outputs import write_outputs
from results.report import Report

log = Console(stderr=True, highlight=False)


def run(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Tasks: paths, builtin:level1/softmax, kernelbench:2/40.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Many tasks: builtin, builtin:level1, kernelbench:1, a list file.")
    ] = None,
    coder: Annotated[str, typer.Option(help="Who writes the kernels: builtin.")] = "builtin",
    judge: Annotated[str, typer.Option(help="Who says what to change: rules.")] = "rules",
    rounds: Annotated[int, typer.Option(help="Candidates a task at most.")] = 4,
    search: Annotated[str, typer.Option(help="How candidates follow from each other: refine.")] = "refine",
    target: Annotated[str, typer.Option(help="The device: cpu.")] = "cpu",
    overrides: Overrides = None,
    precision: Annotated[
        Precision, typer.Option(help="What floating inputs and weights are cast to.")
    ] = Precision.fp32,
    baselines: Baselines = None,
    own_kernels: OwnKernels = 0.0,
    effort: EffortName = "full",
    max_minutes: Annotated[
        float | None, typer.Option(help="Begin no further round after so many minutes.")
    ] = None,
    lanes: Annotated[int, typer.Option(help="Tasks worked on at a time; one times at a time.")] = 1,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run. Default: runs/DATE.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    kernelbench_dir: KernelbenchDir = None,
    as_json: Json = False,
) -> int:
    """Optimize tasks: write, verify, time and improve a kernel for each, then report.

    Writes DIR/run.db as it goes, and DIR/summary.json, DIR/report.html and DIR/best/TASK.py.
    """
    if not 1 <= lanes <= most_lanes():
        raise UsageError(
            f"--lanes {lanes} is not for this machine", f"its memory is enough for 1 to {most_lanes()}"
        )
    if resume is not None and (tasks or suite or out):
        raise UsageError(
            "--resume takes its tasks and folder from the run", "leave out TASK, --suite and --out"
        )
    if resume is not None:
        with RunFolder.resume(resume) as folder, RunDatabase.open(folder.database) as database:
            settings = _settings_of(database).checked()
            _, protocol = check_protocol(settings.baselines, settings.own_kernels, settings.effort)
            with Evaluator(cache=cache_folder(), protocol=protocol) as evaluator:
                return _carry_out(folder, database, evaluator, settings, max_minutes, lanes, as_json)
    against, protocol = check_protocol(baselines, own_kernels, effort)
    settings = Settings(
        coder=coder,
        judge=judge,
        search=search,
        rounds=rounds,
        target=target,
        baselines=against,
        own_kernels=own_kernels,
        effort=effort,
    ).checked()
    chosen = sources.resolve(
        tasks or [],
        suite=suite,
        kernelbench_dir=kernelbench_dir,
        overrides=sources.from_words(overrides or []),
        precision=precision,
    )
    path = out or Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}"
    with (
        RunFolder.create(path) as folder,
        Evaluator(cache=cache_folder(), protocol=protocol) as evaluator,
        RunDatabase.create(
            folder.database,
            settings=settings.to_json(),
            target=evaluator.target,
            environment=evaluator.environment,
            command=shlex.join(["kernelwright", *sys.argv[1:]]),
            tasks=chosen,
        ) as database,
    ):
        return _carry_out(folder, database, evaluator, settings, max_minutes, lanes, as_json)


def _settings_of(database: RunDatabase) -> Settings:
    """Raises StorageError where another version wrote others."""
    try:
        return Settings.model_validate(database.settings)
    except ValidationError:
        written_by = database.run.kernelwright
        raise StorageError(
            f"the settings of this run, of kernelwright {written_by}, are not those of this version",
            "start a new run with another --out",
        ) from None


def _carry_out(
    folder: RunFolder,
    database: RunDatabase,
    evaluator: Evaluator,
    settings: Settings,
    max_minutes: float | None,
    lanes: int,
    as_json: bool,
) -> int:
    try:
        with _progress(len(database.tasks())) as (say, advance):
            complete = carry_out(database, evaluator, settings, deadline(max_minutes), say, advance, lanes)
    finally:
        summary = write_outputs(folder, database)
    if as_json:
        print(summary.model_dump_json())
    else:
        sys.stdout.write(render(Report.read(database), Format.table))
    if not complete:
        log.print(
            f"Not all tasks are done; go on with: kernelwright run --resume {folder.path}", markup=False
        )
    log.print(f"Report: {folder.report}", markup=False)
    return 0


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """A bar on a terminal, a line an event elsewhere: `say` prints a line, `advance` moves the bar."""

    def say(line: str) -> None:
        log.print(f"{datetime.now():%H:%M:%S} {line}", markup=False, soft_wrap=True)

    if not log.is_terminal:
        yield say, lambda _: None
        return
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=log, transient=True) as progress:
        bar = progress.add_task("", total=total)

        def advance(task: str) -> None:
            """The id of a task that begins; an empty one when a task is done."""
            progress.update(bar, description=task, advance=0 if task else 1)

        yield say, advance
