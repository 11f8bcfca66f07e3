"""The command `run`."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from kernelwright.agent.display.progress import RunProgress, log, opening_line, reported
from kernelwright.agent.llm.model import EndpointUnusable
from kernelwright.agent.llm.session import ModelSession
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.replay import replay
from kernelwright.agent.run import Run
from kernelwright.agent.tracking.tracker import TrackedDatabase, tracking
from kernelwright.agent.tracking.trackers import trackers
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.evaluator import LocalEvaluator
from kernelwright.kernelbench.options import command
from kernelwright.results.lessons.lessons import Effect, effects_of
from kernelwright.results.store.connection import location, shown
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder
from kernelwright.results.store.records import LlmCall, TaskState

if TYPE_CHECKING:
    from kernelwright.agent.llm.endpoint.preflight import Preflight


@command(RunConfig)
def run(config: RunConfig) -> int:
    """Optimize tasks: write, verify, time and improve a kernel for each.

    Writes run.db, summary.json, report.html and best/TASK.py into its folder.

    Further options, of a model's endpoint: docs/options.md.
    """
    words, database = sys.argv[1:], config.output.database
    if database is not None:  # without its password
        words = [word.replace(database, shown(location(database))) for word in words]
    return execute(config, shlex.join(["kernelwright", *words]))


def execute(config: RunConfig, command: str) -> int:
    """Do what a config says; `command` is what the run's record says that began it."""
    out = config.output.out or Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}"
    if config.output.replay is not None:
        config.require_only("replay")
        return replay(config.output.replay, out, config.output.as_json)
    if config.output.dry_run:
        return _dry_run(config)
    begun = (
        _new(config, out, command) if config.output.resume is None else _resumed(config, config.output.resume)
    )
    with begun as (folder, database, evaluator, config, found):
        learned = _learned_if_readable(config)
        models = _models(config, database, evaluator, found)
        try:
            with (
                ProfilingPool(evaluator, config.execution.workers, config.evaluation.profilers) as pool,
                reported(folder, database, config.output.as_json, config.output.shown) as progress,
                _tracking(config, database, folder, evaluator, progress),
                models or nullcontext(),
            ):
                progress.say(opening_line(config, config.endpoint.url, len(database.tasks()), folder.path))
                workspaces = folder.path / "workspaces"
                done = Run(config, database, pool, models, learned, progress, workspaces).execute()
        except KeyboardInterrupt:
            _say_how_to_go_on("Interrupted", folder)
            raise
        except EndpointUnusable as error:
            _say_how_to_go_on("No model answers, so the tasks that are left are pending", folder)
            from kernelwright.agent.llm.endpoint.preflight import unusable  # imports openai

            raise unusable(config.endpoint, error) from None
        if not done:
            _say_how_to_go_on("Not all tasks are done", folder)
    return 0


Begun = tuple[RunFolder, TrackedDatabase, LocalEvaluator, RunConfig, "Preflight | None"]


@contextmanager
def _new(config: RunConfig, out: Path, command: str) -> Iterator[Begun]:
    """Begin a new run; its options are checked before anything is created."""
    config = config.resolved()
    config.check()
    if (roles := config.model.roles()) is not None:
        config.terms().budget_for(roles)
    _learned(config)
    tasks = config.named_tasks()
    found = _preflight(config)
    with (
        RunFolder.create(out, config.output.database) as folder,
        config.evaluation.evaluator() as evaluator,
        TrackedDatabase.create(
            folder.database,
            settings=config.record(),
            target=evaluator.target,
            environment=evaluator.environment,
            command=command,
            tasks=tasks,
        ) as database,
    ):
        yield folder, database, evaluator, config, found


@contextmanager
def _resumed(config: RunConfig, path: Path) -> Iterator[Begun]:
    """Resume a run, with the options that are given now."""
    config.require_only("resume")
    with RunFolder.resume(path) as folder, TrackedDatabase.open(folder.database) as database:
        config = RunConfig.recorded(database).revised_by(config)
        config.check()
        pending = any(entry.state is TaskState.pending for entry in database.tasks())
        found = _preflight(config, database.llm_calls()) if pending else None
        with config.evaluation.evaluator(database.run.target) as evaluator:
            database.record_settings(config.record())
            yield folder, database, evaluator, config, found


def _preflight(config: RunConfig, had: Sequence[LlmCall] = ()) -> "Preflight | None":
    """Ask the models whether they can be used, after the calls that a run has had.

    Raises MissingPrerequisite.
    """
    roles = config.model.roles()
    return config.terms().preflight(roles, had, _say) if roles is not None else None


def _dry_run(config: RunConfig) -> int:
    from kernelwright.agent.dry_run import dry_run, show

    if config.output.resume is not None:
        raise UsageError("--dry-run is of a new run", "leave out --resume")
    config = config.resolved()
    config.check()
    tasks = config.tasks.resolve(config.evaluation.device)
    found = dry_run(config, config.terms().prices, tasks)
    if config.output.as_json:
        print(found.model_dump_json())
    else:
        show(found, Console(highlight=False))
    return 0


def _models(
    config: RunConfig, database: RunDatabase, evaluator: LocalEvaluator, found: "Preflight | None"
) -> ModelSession | None:
    roles = config.model.roles()
    if roles is None:
        return None
    return ModelSession.asking(roles, config.terms(), database, evaluator.timing_lock, found, _say)


def _tracking(
    config: RunConfig,
    database: TrackedDatabase,
    folder: RunFolder,
    evaluator: LocalEvaluator,
    progress: RunProgress,
) -> AbstractContextManager[None]:
    address = config.endpoint.url if config.model.model is not None else None
    begin = trackers(config.execution.tracking, database, folder.path, address, progress.say)
    return tracking(begin, database, evaluator.timing_lock, progress.say)


def _say(line: str) -> None:
    log.print(line, markup=False, soft_wrap=True)


def _learned_if_readable(config: RunConfig) -> list[Effect]:
    """Read the effects of other runs; a resumed run goes on without those that cannot be read any more."""
    try:
        return _learned(config)
    except StorageError as error:
        log.print(f"Effects of other runs are left out: {error}", markup=False, soft_wrap=True)
        return []


def _learned(config: RunConfig) -> list[Effect]:
    """Read the effects that other runs have measured. Raises StorageError."""
    effects: list[Effect] = []
    for path in config.tuner.learn_from:
        with RunDatabase.open(path, read_only=True) as run:
            effects += effects_of(run)
    return effects


def _say_how_to_go_on(why: str, folder: RunFolder) -> None:
    command = shlex.join(["kernelwright", "run", "--resume", str(folder.path)])
    log.print(f"{why}; go on with: {command}", markup=False, soft_wrap=True)  # it is there to be copied
