"""One invocation of `run`: the same run may be carried out in several, and a finished one be replayed."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

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

from kernelwright.agent.budget import SpendingLimits
from kernelwright.agent.llm.model import Endpoint
from kernelwright.agent.llm.session import ModelSession, Terms
from kernelwright.agent.loop import deadline
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import searched
from kernelwright.agent.replay import ReplayedEvaluations, differences
from kernelwright.agent.run import MODEL_TASKS, Settings, execute
from kernelwright.agent.tuner.memory import Learned
from kernelwright.agent.tuner.random_forest import Example, check_installed, examples
from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.evaluator import LocalEvaluator, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.results.lessons.lessons import Effect, effects_of
from kernelwright.results.outputs import write_outputs
from kernelwright.results.report.contents import Report
from kernelwright.results.report.formats import show
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder

log = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class RunSession:
    """How a run is worked on this time."""

    endpoint: Endpoint
    prices: Path
    run_limit: SpendingLimits
    task_limit: SpendingLimits
    workers: int | None
    tasks_at_once: int | None
    learn_from: tuple[Path, ...]
    as_json: bool

    def limiting(self, settings: Settings) -> Settings:
        """The limits that a run began with hold until others are given; it learns from more and more runs."""
        run, task = self.run_limit, self.task_limit
        learn_from = [str(path.resolve()) for path in self.learn_from]
        return settings.model_copy(
            update={
                "run_limit": settings.run_limit.replaced_by(run),
                "task_limit": settings.task_limit.replaced_by(task),
                "learn_from": tuple(dict.fromkeys([*settings.learn_from, *learn_from])),
            }
        )

    def check(self, settings: Settings) -> None:
        """Raises UsageError, MissingPrerequisite or StorageError where it cannot be done so."""
        if settings.roles is not None:
            self._terms(settings).budget_for(settings.roles)
        if settings.rank_by == "surrogate":
            check_installed()
        _learned(settings, chip="")

    def execute(
        self, folder: RunFolder, database: RunDatabase, evaluator: LocalEvaluator, settings: Settings
    ) -> int:
        """Work on the run until it is done or may do no more; the exit status. Raises StorageError, and
        KeyboardInterrupt once it is said how to go on.
        """
        learned, models = Learned(), None
        try:
            learned = _learned(settings, evaluator.target.fingerprint.chip)
        except StorageError as error:  # it could be read when the run began, which must not hang on it
            log.print(f"Effects of other runs are left out: {error}", markup=False, soft_wrap=True)
        if settings.roles is not None:
            models = ModelSession.asking(
                settings.roles, self._terms(settings), database, evaluator.sessions.pool.timing_lock
            )
        try:
            with ProfilingPool(evaluator, self.workers) as pool:
                at_once = self.tasks_at_once or (pool.slots if models is None else MODEL_TASKS)
                done = _carry_out(folder, database, pool, settings, models, at_once, learned, self.as_json)
        except KeyboardInterrupt:
            _say_how_to_go_on("Interrupted", folder)
            raise
        if not done:
            _say_how_to_go_on("Not all tasks are done", folder)
        return 0

    def _terms(self, settings: Settings) -> Terms:
        return Terms(self.endpoint, self.prices, settings.run_limit, settings.task_limit)


def _learned(settings: Settings, chip: str) -> Learned:
    """What is of use on this chip. Raises StorageError."""
    effects: list[Effect] = []
    known: list[Example] = []
    for path in settings.learn_from:
        with RunDatabase.open(Path(path), read_only=True) as run:
            effects += effects_of(run)
            if settings.rank_by == "surrogate" and run.run.target.fingerprint.chip == chip:
                for entry in run.tasks():
                    attempts = searched(run.attempts(entry.task.id))
                    known += examples(entry.task, attempts, settings.language)
    return Learned(tuple(effects), tuple(known))


def replay(recorded_in: Path, path: Path, as_json: bool) -> int:
    """Go through a run again into a new folder; 1 where other decisions were taken. Raises StorageError."""
    with (
        RunDatabase.open(recorded_in, read_only=True) as recorded,
        RunFolder.create(path) as folder,
        Referee.start(cache=cache_folder()) as evaluator,
        RunDatabase.create(
            folder.database,
            settings=recorded.settings,
            target=recorded.run.target,
            environment=recorded.run.environment,
            command=shlex.join(["kernelwright", *sys.argv[1:]]),
            tasks=[entry.task for entry in recorded.tasks()],
        ) as database,
        ReplayedEvaluations(evaluator, recorded) as pool,
    ):
        for entry in recorded.tasks():
            database.record_lessons(entry.task.id, entry.lessons)
        none = {
            "run_limit": SpendingLimits(),
            "task_limit": SpendingLimits(),
        }  # the run went as far as it went
        settings = settings_of(database).model_copy(update=none)
        models = ModelSession.replaying(settings.roles, recorded) if settings.roles is not None else None
        _carry_out(folder, database, pool, settings, models, 1, Learned(), as_json)
        found = differences(recorded, database)
    for difference in found:
        log.print(difference, markup=False, soft_wrap=True)
    log.print("Other decisions than in the run." if found else "The same decisions as in the run.")
    return 1 if found else 0


def settings_of(database: RunDatabase) -> Settings:
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
    pool: ProfilingPool,
    settings: Settings,
    models: ModelSession | None,
    at_once: int,
    learned: Learned,
    as_json: bool,
) -> bool:
    """Whether all tasks are done."""
    check = deadline(settings.run_limit.minutes)
    try:
        with (
            models or contextlib.nullcontext(),
            _progress(len(database.tasks())) as (say, advance),
        ):
            complete = execute(database, pool, settings, check, say, advance, at_once, models, learned)
    finally:
        summary = write_outputs(folder, database)
    if as_json:
        print(summary.model_dump_json())
    else:
        show(Report.read(database))
    log.print(f"Report: {folder.report}", markup=False, soft_wrap=True)
    return complete


def _say_how_to_go_on(why: str, folder: RunFolder) -> None:
    command = shlex.join(["kernelwright", "run", "--resume", str(folder.path)])
    log.print(f"{why}; go on with: {command}", markup=False, soft_wrap=True)  # it is there to be copied


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
