"""A run whose files come from outside, one task or several: check, measure, profile, submit.

    with ExternalRun.resumed(folder) as run:
        task = run.task()
        result = run.evaluate(task, source, timed=True)   # recorded before it is returned
        run.submit(task)                                  # confirms the fastest, writes best/ and the report

The run's folder is held while something is evaluated, and not between: several processes, such as a server
and a shell, may work on one run, one at a time. A file that was evaluated before is answered from the record.
All methods may be called from many threads.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from kernelwright.agent.config import RunConfig
from kernelwright.agent.display.progress import RunProgress
from kernelwright.agent.llm.prompting import essence, notes, sizes_note
from kernelwright.agent.llm.session import languages_for
from kernelwright.agent.llm.situation import Situation, operators_table, tried_table
from kernelwright.agent.loop import SEARCHED
from kernelwright.agent.numbered_files import (
    best_number,
    is_right,
    known_number,
    profile_told,
    profiled_closely,
    told,
)
from kernelwright.agent.pooled_coder import PooledBuiltinCoder
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import Attempt, NoCandidate, NoSeed, searched
from kernelwright.agent.recorder import DatabaseRecorder
from kernelwright.agent.search import best_of
from kernelwright.agent.seeds import BuiltinSeed, FileSeed
from kernelwright.agent.spending.budget import BudgetSpent
from kernelwright.agent.tool.records import (
    CompiledKernels,
    FileProfile,
    FileResult,
    TaskDescription,
    TaskHistory,
)
from kernelwright.agent.tuner.posterior import expected_speedups
from kernelwright.agent.winners import confirm, speedup_of
from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import CHECK, LocalEvaluator, Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.results.outputs import write_outputs
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import FolderInUseError, RunFolder

MOST_CHARACTERS = 1_000_000  # of a file
_LOOK_S = 0.5  # between two looks at a folder that another process holds
_BASELINES = ("eager", "compile", "max_autotune", "cuda_graphs")


def recorded_history(folder: Path, task: str) -> TaskHistory:
    """Return the files of a task in a run's folder, without an evaluator. Raises StorageError."""
    with RunDatabase.open(folder, read_only=True) as database:
        return _history(database, task)


def prepared(config: RunConfig) -> tuple[RunConfig, list[Task]]:
    """Return the config for this machine, and its tasks. Raises UsageError, MissingPrerequisite."""
    config = config.resolved()
    config.check()
    return config, config.named_tasks()


class ExternalRun:
    """Evaluates, records and tells. See the module."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        database: RunDatabase,
        pool: ProfilingPool,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`say` is told what goes on, a line at a time."""
        self.config, self.folder, self.database, self.pool = config, folder, database, pool
        self._recorder = DatabaseRecorder(
            database, self.pool.timing_lock, RunProgress(), threading.Event(), memory=None
        )
        self._say = say
        self._recording = threading.RLock()
        self._holding = threading.Lock()
        self._holders = 0  # threads that need the folder's lock
        self._under_way: dict[str, int] = {}  # evaluations that are not recorded yet, by task
        self.tasks = tuple(entry.task for entry in database.tasks())

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
                    environment=evaluator.sessions.environment,
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
            with config.evaluation.evaluator() as evaluator, _pool(config, evaluator) as pool:
                yield cls(config, folder, database, pool, say)

    def task(self, name: str | None = None) -> Task:
        """Return a task by its id or the end of it; the only one if none is named. Raises UsageError."""
        ids = ", ".join(task.id for task in self.tasks)
        if name is None:
            if len(self.tasks) != 1:
                raise UsageError("there are several tasks", f"name one of {ids}")
            return self.tasks[0]
        found = [task for task in self.tasks if name in (task.id, task.id.rpartition("/")[2])]
        if len(found) != 1:
            raise UsageError(f"there is no task {name!r}", f"name one of {ids}")
        return found[0]

    def tried(self, task: Task) -> list[Attempt]:
        """Return the files of a task so far; the place of each is its number."""
        return searched(self.database.attempts(task.id))

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

    def describe(self, task: Task) -> TaskDescription:
        """Return what there is to know of a task. Raises TaskError."""
        self.begin(task)
        language, tried = languages_for(self.config.evaluation.written_for)[0], self.tried(task)
        situation = Situation(task, self.pool.target, self.pool.work(task))
        return TaskDescription(
            task=task.id,
            tasks=tuple(each.id for each in self.tasks),
            language=language,
            reference=task.source,
            sizes=sizes_note(task),
            hardware=tuple(situation.hardware(language)),
            goal=tuple(situation.goal(language, tried)),
            operators=operators_table(tried),
            tried=tried_table(tried),
            rules=notes("rules", language),
            interface=notes("interface", language),
            guide=notes("guide", language),
            left=self.left(task),
        )

    def evaluate(
        self, task: Task, source: str, *, timed: bool, author: str = "agent", idea: str = ""
    ) -> FileResult:
        """Verify a file, and time it if `timed`; return its result, once that is recorded.

        Raises UsageError for what is no file of kernels, BudgetSpent, TaskError, InfrastructureError.
        """
        candidate = _candidate(source, author, idea)
        with self._held():
            return self.result(task, self._evaluated(task, candidate, timed))

    def result(self, task: Task, number: int) -> FileResult:
        """Return the recorded result of a file. Raises UsageError."""
        recorded = [each for each in self.database.attempts(task.id) if not each.confirms]
        if not 0 <= number < len(recorded):
            raise UsageError(f"there is no file {number}", _files(len(recorded)))
        return _result(self.database, task.id, number, searched(recorded), recorded[number].id)

    def history(self, task: Task) -> TaskHistory:
        return _history(self.database, task.id)

    def source(self, task: Task, number: int) -> str:
        """Return the text of a file. Raises UsageError."""
        tried = self.tried(task)
        if not 0 <= number < len(tried):
            raise UsageError(f"there is no file {number}", _files(len(tried)))
        return tried[number].candidate.source

    def profile(self, task: Task, number: int) -> FileProfile:
        """Return what the profilers read of a measured file. Raises UsageError if it was not timed."""
        with self._held():
            tried = self.tried(task)
            self.source(task, number)
            if tried[number].evaluation.timing is None:
                raise UsageError(f"file {number} was not timed", "measure it first")
            attempt = profiled_closely(task, number, tried[number], self.pool, self._recorder)
        metrics = attempt.profile.metrics if attempt.profile is not None else ()
        named = {
            f"{each.name} of {each.kernel}" if each.kernel else each.name: each.value for each in metrics
        }
        return FileProfile(task=task.id, number=number, metrics=named, said=profile_told(number, attempt))

    def compiled(self, task: Task) -> CompiledKernels:
        """Return the kernels that the builtin coder writes for a task, with its launches."""
        coder = PooledBuiltinCoder(self.pool, self.config.builtin_language)
        return CompiledKernels(task=task.id, said=coder.compiled(task))

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
                number = self._evaluated(task, _candidate(source, author, idea), timed=True)
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
                found = _result(self.database, task.id, number, tried, attempt_id, best)
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

    def _evaluated(self, task: Task, candidate: Candidate, timed: bool) -> int:
        """Return the number of a file, which is evaluated and recorded unless it was."""
        tried = self.tried(task)
        if (known := known_number(candidate, timed, tried)) is not None:
            return known
        self._require(task)
        self._under_way[task.id] = self._under_way.get(task.id, 0) + 1
        try:
            evaluation = self._evaluation(task, candidate, timed, tried)
            profile = self.pool.profile(task, candidate, evaluation)
            with self._recording:
                tried = self.tried(task)
                if (known := known_number(candidate, timed, tried)) is not None:  # by another thread
                    return known
                attempt = Attempt(candidate, evaluation, profile)
                self._recorder.attempt(task, len(tried), attempt, None, confirms=False)
                return len(tried)
        finally:
            with self._recording:
                self._under_way[task.id] -= 1

    def _evaluation(
        self, task: Task, candidate: Candidate, timed: bool, tried: Sequence[Attempt]
    ) -> Evaluation:
        if not timed:
            return self.pool.evaluate(task, candidate, CHECK)
        known = any(attempt.evaluation.operators for attempt in tried)
        baselines = tuple(n for n in self.config.evaluation.compared_with if n in ("eager", "compile"))
        first = replace(SEARCHED, baselines=baselines or ("eager",), operators=True)
        to_beat = speedup_of(best_of(tried), expected_speedups(tried))
        return self.pool.evaluate(task, candidate, replace(SEARCHED if known else first, to_beat=to_beat))

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


def _history(database: RunDatabase, task: str) -> TaskHistory:
    recorded = [each for each in database.attempts(task) if not each.confirms]
    tried = searched(recorded)
    files = (_result(database, task, number, tried, each.id) for number, each in enumerate(recorded))
    table = tried_table(tried) or "No file was evaluated yet."
    return TaskHistory(task=task, files=tuple(files), best=best_number(tried), said=table)


def _result(
    database: RunDatabase,
    task: str,
    number: int,
    tried: Sequence[Attempt],
    attempt_id: int,
    confirmed: Attempt | None = None,
) -> FileResult:
    attempt = confirmed or tried[number]
    evaluation, profile = attempt.evaluation, attempt.profile
    timing, speedup = evaluation.timing, evaluation.speedup
    baselines = {name: getattr(timing, f"{name}_us") for name in _BASELINES} if timing is not None else {}
    speedups = (
        {name: getattr(speedup, name) for name in (*_BASELINES, "fastest")} if speedup is not None else {}
    )
    shown = [*tried[:number], attempt, *tried[number + 1 :]] if confirmed is not None else tried
    return FileResult(
        evaluation=f"{database.run_id[:8]}/{attempt_id}",
        task=task,
        number=number,
        sha256=attempt.candidate.sha256,
        verdict=evaluation.verdict,
        right=is_right(attempt),
        timed=timing is not None,
        reason="" if is_right(attempt) else essence(evaluation.reason),
        time_us=timing.candidate_us if timing is not None else None,
        baselines_us={name: found.median for name, found in baselines.items() if found is not None},
        speedup={name: found for name, found in speedups.items() if found is not None},
        own_kernel_share=evaluation.own_kernel_share,
        roofline_share=profile.share_of_light if profile is not None else None,
        bottleneck=profile.bottleneck if profile is not None else "",
        best=best_number(tried),
        said=told(shown, number),
    )


def _candidate(source: str, author: str, idea: str) -> Candidate:
    """Return the candidate of a file. Raises UsageError if it is none."""
    if len(source) > MOST_CHARACTERS:
        raise UsageError(f"the file has {len(source)} characters", f"{MOST_CHARACTERS} are allowed")
    language = language_of(source)
    if language == "torch":
        raise UsageError(
            "the file has no kernels of its own", "write Triton, CUDA or C++ kernels; see the guide"
        )
    return Candidate(source=source, language=language, author=author, idea=idea[:200])


def _files(number: int) -> str:
    return f"files are 0 to {number - 1}" if number else "check or measure one first"
