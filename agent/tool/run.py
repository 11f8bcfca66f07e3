"""A run whose files come from outside, one task or several.

    with ExternalRun.resumed(folder) as run:
        task = run.task()
        result = run.evaluate(task, source, timed=True)   # recorded before it is returned
        run.submit(task)                                  # confirms the fastest, writes best/ and the report

The run's folder is held while something is evaluated, and not between: several processes, such as a server
and a shell, may work on one run, one at a time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from kernelwright.agent.display.progress import RunProgress
from kernelwright.agent.numbered_files import (
    is_right,
    known_number,
)
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.pooled_coder import PooledBuiltinCoder
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import Attempt, NoCandidate, NoSeed
from kernelwright.agent.recorder import DatabaseRecorder
from kernelwright.agent.search import best_of
from kernelwright.agent.seeds import BuiltinSeed, FileSeed
from kernelwright.agent.spending.budget import BudgetSpent
from kernelwright.agent.tool.records import (
    FileResult,
    TaskHistory,
)
from kernelwright.agent.tool.referee_tools import (
    RefereeTools,
    candidate_of,
    file_result,
    history_of,
    task_named,
)
from kernelwright.agent.tuner.posterior import expected_speedups
from kernelwright.agent.winners import confirm
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import LocalEvaluator, Measurement
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.results.outputs import write_outputs
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import FolderInUseError, RunFolder

_LOOK_S = 0.5  # between two looks at a folder that another process holds


def recorded_history(folder: Path, task: str) -> TaskHistory:
    """Return the files of a task in a run's folder, without an evaluator. Raises StorageError, UsageError."""
    with RunDatabase.open(folder, read_only=True) as database:
        return history_of(database, task_named(task, [entry.task for entry in database.tasks()]).id)


def prepared(config: RunConfig) -> tuple[RunConfig, list[Task]]:
    """Return the config for this machine, and its tasks. Raises UsageError, MissingPrerequisite."""
    config = config.resolved()
    config.check()
    return config, config.named_tasks()


class ExternalRun(RefereeTools):
    """Tools over a run of their own. See the module."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        database: RunDatabase,
        pool: ProfilingPool,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`say` is told what goes on, a line at a time."""
        recorder = DatabaseRecorder(database, pool.timing_lock, RunProgress(), threading.Event(), memory=None)
        super().__init__(config, database, pool, recorder, [entry.task for entry in database.tasks()])
        self.folder, self._say = folder, say
        self._holding = threading.Lock()
        self._holders = 0  # threads that need the folder's lock
        self._under_way: dict[str, int] = {}  # evaluations that are not recorded yet, by task

    @classmethod
    @contextmanager
    def new(
        cls, config: RunConfig, out: Path, command: str, say: Callable[[str], None] = lambda line: None
    ) -> Iterator[Self]:
        """Begin a run. Raises UsageError before anything is created; else as `RunFolder.create` does."""
        config, tasks = prepared(config)
        with ExitStack() as stack:
            folder = stack.enter_context(RunFolder.create(out))
            evaluator = stack.enter_context(config.evaluation.evaluator())
            database = stack.enter_context(
                RunDatabase.create(
                    folder.database,
                    settings=config.record(),
                    target=evaluator.target,
                    environment=evaluator.environment,
                    command=command,
                    tasks=tasks,
                )
            )
            folder.close()  # held again while something is evaluated
            pool = stack.enter_context(_pool(config, evaluator))
            yield cls(config, folder, database, pool, say)

    @classmethod
    @contextmanager
    def resumed(cls, path: Path, say: Callable[[str], None] = lambda line: None) -> Iterator[Self]:
        """Open the run in a folder. Raises StorageError."""
        folder = RunFolder(path)
        with RunDatabase.open(folder.database) as database:
            config = RunConfig.recorded(database)
            with (
                config.evaluation.evaluator(database.run.target) as evaluator,
                _pool(config, evaluator) as pool,
            ):
                yield cls(config, folder, database, pool, say)

    def begin(self, task: Task) -> None:
        """Evaluate the seed of a task, if it has none and there is to be one."""
        with self._held():
            if self.tried(task):
                return
            language, seed = self.config.builtin_language, self.config.model.seed
            source = (
                None
                if seed == "none"
                else BuiltinSeed(PooledBuiltinCoder(self.pool, language))
                if seed == "builtin"
                else FileSeed(self.config.model.seed_source)
            )
            if source is None:
                return
            self._say(f"{task.id}: evaluating the kernel to start from")
            try:
                self._evaluated(task, source(task), timed=True)
            except (NoSeed, NoCandidate) as none:
                self._say(f"{task.id}: no kernel to start from: {none}")

    def submit(
        self, task: Task, source: str | None = None, *, author: str = "agent", idea: str = ""
    ) -> FileResult:
        """Measure the fastest file once more, against all baselines, and write the files of the run.

        A `source` is evaluated before. The result is that of the file that was confirmed; where nothing can
        be timed, of the last file that is right. Raises UsageError if none is right.
        """
        with self._held():
            number = None
            if source is not None:
                number = self._evaluated(task, candidate_of(source, author, idea), timed=True)
                if not is_right(self.tried(task)[number]):
                    return self.result(task, number)
            tried = self.tried(task)
            confirm(tried, expected_speedups(tried), lambda file: self._confirmed(task, file), ())
            confirmed = [each for each in self.database.attempts(task.id) if each.confirms]
            best = best_of([Attempt(a.candidate, a.evaluation, a.profile) for a in confirmed])
            if best is not None:
                number = known_number(best.candidate, True, tried)
                assert number is not None, "a confirmation of a file that was not measured"
                attempt_id = next(a.id for a in reversed(confirmed) if a.evaluation is best.evaluation)
                found = file_result(self.database, task.id, number, tried, attempt_id, best)
            else:
                right = [n for n, attempt in enumerate(tried) if is_right(attempt)]
                if not right:
                    raise UsageError("no file is right yet", "check and measure one that is")
                found = self.result(task, number if number is not None else right[-1])
            self.database.finish_task(task.id, f"submitted by {author}")
            write_outputs(self.folder, self.database)
        return found

    def left(self, task: Task) -> str:
        """Say what is left of the budget of a task; empty if it has no limits."""
        said = [f"{left} evaluations" for left in (self._evaluations_left(task),) if left is not None]
        seconds = self._seconds_left(task)
        said += [] if seconds is None else [f"{max(0.0, seconds) / 60:.1f} minutes"]
        return f"{' and '.join(said)} left" if said else ""

    @contextmanager
    def _counted(self, task: Task, timed: bool) -> Iterator[None]:
        with self._recording:
            self._require(task)
            self._under_way[task.id] = self._under_way.get(task.id, 0) + 1
        try:
            yield
        finally:
            with self._recording:
                self._under_way[task.id] -= 1

    def abort(self) -> None:
        self.pool.abort()

    def _confirmed(self, task: Task, candidate: Candidate) -> Attempt:
        """Return the confirmation of a file, of which there is one: the best of several would be too good."""
        for each in self.database.attempts(task.id):
            if each.confirms and each.candidate.sha256 == candidate.sha256:
                return Attempt(each.candidate, each.evaluation, each.profile)
        baselines = self.config.evaluation.compared_with
        evaluation = self.pool.evaluate(task, candidate, Measurement(baselines))
        attempt = Attempt(candidate, evaluation, self.pool.profile(task, candidate, evaluation))
        with self._recording:
            self._recorder.attempt(task, len(self.tried(task)), attempt, None, confirms=True)
        return attempt

    def _require(self, task: Task) -> None:
        """Check that a file of a task may be evaluated now. Raises BudgetSpent."""
        left, seconds = self._evaluations_left(task), self._seconds_left(task)
        if left is not None and left < 1:
            raise BudgetSpent("the evaluations of this task are used up; submit confirms the best file")
        if seconds is not None and seconds <= 0:
            raise BudgetSpent("the time for this task is over; submit confirms the best file")

    def _evaluations_left(self, task: Task) -> int | None:
        """Return how many evaluations may begin; one of a task is kept for its winner."""
        limits, had = self.config.budget, self.database.evaluations()
        under_way = dict(self._under_way)
        found = []
        if limits.max_evaluations_per_task is not None:
            own = had.get(task.id, 0) + under_way.get(task.id, 0)
            found.append(limits.max_evaluations_per_task - own - 1)
        if limits.max_evaluations is not None:
            found.append(limits.max_evaluations - sum(had.values()) - sum(under_way.values()) - 1)
        return max(0, min(found)) if found else None

    def _seconds_left(self, task: Task) -> float | None:
        limits, found = self.config.budget, []
        if limits.max_minutes_per_task is not None:
            found.append(60 * limits.max_minutes_per_task - self.database.seconds(task.id))
        if limits.max_minutes is not None:
            began = datetime.fromisoformat(self.database.run.started)
            found.append(60 * limits.max_minutes - (datetime.now(UTC) - began).total_seconds())
        return min(found, default=None)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the folder, for which other processes that evaluate in it are waited for."""
        with self._holding:
            if self._holders == 0:
                self._wait_for_folder()
            self._holders += 1
        try:
            yield
        finally:
            with self._holding:
                self._holders -= 1
                if self._holders == 0:
                    self.folder.close()

    def _wait_for_folder(self) -> None:
        said = False
        while True:
            try:
                return self.folder.acquire()
            except FolderInUseError as error:
                if not said:
                    self._say(f"waiting: {error.message}")
                said = True
                time.sleep(_LOOK_S)


def _pool(config: RunConfig, evaluator: LocalEvaluator) -> ProfilingPool:
    return ProfilingPool(evaluator, config.execution.workers, config.evaluation.profilers)
