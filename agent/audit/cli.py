"""The command `audit`."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field, ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kernelwright.agent.audit.audit import Audit, grades
from kernelwright.agent.audit.plan import AuditPlan, TaskFinder
from kernelwright.agent.audit.report import NOTE, markdown, table
from kernelwright.agent.display.progress import log
from kernelwright.agent.options.evaluation import EvaluationOptions
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.cli import AnyTargets, Baselines, CompileLimit, EffortName, KernelbenchDir
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.evaluator import COMPILE_S, LocalEvaluator
from kernelwright.kernelbench.options import Section, command, given
from kernelwright.kernelbench.remote.options import Cluster, Servers, ServerToken
from kernelwright.results.archives import kernelbench_runs
from kernelwright.results.archives.kernelbench_runs import AUDIT
from kernelwright.results.archives.reading import KINDS, read_archive
from kernelwright.results.outputs import write_outputs
from kernelwright.results.report.contents import RunReport
from kernelwright.results.report.formats import console
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder

_REPORT, _UPSTREAM = "audit.md", "kernelbench"  # in its folder
_PARKED_BYTES = 1 << 30  # for samples of one problem; no other kernel comes back to a task


class ArchiveOptions(Section):
    """Published kernels, and where their tasks are."""

    path: Annotated[
        Path | None,
        typer.Argument(help="Run folder of KernelBench, or JSON file as of CUDA-L1.", metavar="FOLDER|FILE"),
    ] = None
    kernelbench_dir: KernelbenchDir = None
    limit: Annotated[int | None, Field(ge=1), typer.Option(help="Kernels to grade, the first ones.")] = None
    draw: Annotated[
        int | None,
        Field(ge=1),
        typer.Option(help="Kernels to grade, drawn at random: of one archive always the same."),
    ] = None


class GradingOptions(Section):
    """Options of evaluation, as those of `run`."""

    target: AnyTargets = "cpu"
    baselines: Baselines = None
    compile_limit: CompileLimit = COMPILE_S
    effort: EffortName = "full"
    servers: Servers = ()
    server_token: ServerToken = None
    cluster: Cluster = None

    @property
    def resolved(self) -> EvaluationOptions:
        """All options of evaluation. Raises UsageError."""
        chosen = EvaluationOptions(
            target=self.target,
            baselines=self.baselines,
            compile_limit=self.compile_limit,
            effort=self.effort,
            servers=self.servers,
            server_token=self.server_token,
            cluster=self.cluster,
            profilers="none",
        )
        chosen.check()
        return chosen.resolved()


class AuditOutputOptions(Section):
    """Folder of the audit, new or known."""

    out: Annotated[Path | None, typer.Option(help="New folder of the audit.", show_default="runs/DATE")] = (
        None
    )
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the audit in this folder.")
    ] = None


class AuditConfig(Section):
    """All that an audit is asked to do."""

    archive: ArchiveOptions = ArchiveOptions()
    evaluation: GradingOptions = GradingOptions()
    output: AuditOutputOptions = AuditOutputOptions()


@command(AuditConfig)
def audit(config: AuditConfig) -> int:
    """Grade published kernels again: verdict, speedup, and what changed against what was claimed.

    Reads a run folder of KernelBench, or a JSON file as of CUDA-L1. Writes run.db, report.html, audit.md and,
    for KernelBench's own scripts, kernelbench/levelN/eval_results.json into its folder.
    """
    resume = config.output.resume
    with _new(config) if resume is None else _resumed(config, resume) as begun:
        folder, database, evaluator, plan, options = begun
        complete = False
        try:
            with (
                ProfilingPool(evaluator, profilers=options.profilers, parked_bytes=_PARKED_BYTES) as pool,
                _shown(len(plan.archive.kernels)) as say,
            ):
                complete = Audit(database, pool, plan, options.compared_with, say).execute()
        finally:
            _write(folder, database, plan)
            if not complete:
                again = shlex.join(["kernelwright", "audit", "--resume", str(folder.path)])
                _say(f"Some kernels are left; go on with: {again}")
        screen = console()
        screen.print(table(grades(database, plan), screen.width))
    for line in (*plan.archive.left_out, NOTE, f"Report: {folder.path / _REPORT}"):
        _say(line)
    return 0 if complete else 1


AuditBegun = tuple[RunFolder, RunDatabase, LocalEvaluator, AuditPlan, EvaluationOptions]


@contextmanager
def _new(config: AuditConfig) -> Iterator[AuditBegun]:
    """Begin an audit; all that is asked for is checked before anything is created."""
    options = config.evaluation.resolved
    if config.archive.path is None:
        raise UsageError("no archive is given", f"give {KINDS}, or --resume DIR")
    archive = read_archive(config.archive.path)
    if config.archive.draw is not None:
        archive = archive.drawn(config.archive.draw)
    if config.archive.limit is not None:
        archive = archive.model_copy(update={"kernels": archive.kernels[: config.archive.limit]})
    plan, tasks = AuditPlan.of(
        archive, TaskFinder(archive.suite, config.archive.kernelbench_dir, options.device)
    )
    if not tasks:
        why = next(iter(plan.without.values()))
        raise UsageError(f"no kernel of {config.archive.path} has a task: {why}", "check --kernelbench-dir")
    out = config.output.out or Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}"
    with RunFolder.create(out) as folder:
        plan.write(folder)
        with (
            options.evaluator() as evaluator,
            RunDatabase.create(
                folder.database,
                settings={AUDIT: config.model_dump(mode="json", exclude={"output"})},
                target=evaluator.target,
                environment=evaluator.environment,
                command=shlex.join(["kernelwright", *sys.argv[1:]]),
                tasks=tasks,
            ) as database,
        ):
            yield folder, database, evaluator, plan, options


@contextmanager
def _resumed(config: AuditConfig, path: Path) -> Iterator[AuditBegun]:
    """Go on with the audit in a folder, with the options that it was begun with."""
    for other in given(config):
        if other.name != "resume":
            raise UsageError(f"--resume takes {other.flag} from the audit", "leave it out")
    with RunFolder.resume(path) as folder, RunDatabase.open(folder.database) as database:
        recorded = database.settings.get(AUDIT)
        if recorded is None:
            raise UsageError(f"{path} holds a run, not an audit", f"use kernelwright run --resume {path}")
        plan = AuditPlan.read(folder.path)
        try:
            options = AuditConfig.model_validate(recorded).evaluation.resolved
        except ValidationError:
            raise StorageError(
                f"the settings of the audit in {path} are not those of this version",
                "start another audit with --out",
            ) from None
        with options.evaluator(database.run.target) as evaluator:
            yield folder, database, evaluator, plan, options


def _write(folder: RunFolder, database: RunDatabase, plan: AuditPlan) -> None:
    """Write all that is made from the database: reports, kernels, and KernelBench's form of them."""
    write_outputs(folder, database)
    report = RunReport.read(database)
    folder.write(folder.path / _REPORT, markdown(grades(database, plan), plan.archive, report.run))
    kernelbench_runs.write(kernelbench_runs.samples(report), folder.path / _UPSTREAM)


@contextmanager
def _shown(kernels: int) -> Iterator[Callable[[int, str], None]]:
    """Show a bar on a terminal; yields what prints the line of a kernel."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=log, transient=True, disable=not log.is_terminal) as progress:
        bar = progress.add_task("", total=kernels)

        def say(number: int, line: str) -> None:
            progress.update(bar, completed=number)
            _say(f"[{number}/{kernels}] {line}")

        yield say


def _say(line: str) -> None:
    log.print(line, markup=False, soft_wrap=True)
