"""Tools of the referee for callers from outside: describe, check, measure, profile, submit.

Every file is recorded before its result is returned; one that was evaluated before is answered from the
record. All methods may be called from many threads.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

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
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.pooled_coder import PooledBuiltinCoder
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import Attempt, Recorder, searched
from kernelwright.agent.search import best_of
from kernelwright.agent.tool.records import (
    CompiledKernels,
    FileProfile,
    FileResult,
    TaskDescription,
    TaskHistory,
)
from kernelwright.agent.tuner.posterior import expected_speedups
from kernelwright.agent.winners import speedup_of
from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import CHECK
from kernelwright.kernelbench.evaluator.refusal import printable
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.kernelbench.speed_of_light import score_of
from kernelwright.results.store.database import RunDatabase

MOST_CHARACTERS = 1_000_000  # of a file
_BASELINES = ("eager", "compile", "max_autotune", "cuda_graphs")


class RefereeTools(ABC):
    """Evaluates, records and tells. What may be spent, and what it is to submit, is up to the kind of run."""

    def __init__(
        self,
        config: RunConfig,
        database: RunDatabase,
        pool: ProfilingPool,
        recorder: Recorder,
        tasks: Sequence[Task],
    ) -> None:
        self.config, self.database, self.pool, self.tasks = config, database, pool, tuple(tasks)
        self._recorder = recorder
        self._recording = threading.RLock()

    @abstractmethod
    def begin(self, task: Task) -> None:
        """Evaluate the seed of a task, if it has none and there is to be one."""

    @abstractmethod
    def submit(
        self, task: Task, source: str | None = None, *, author: str = "agent", idea: str = ""
    ) -> FileResult:
        """Submit the fastest file, once a `source` is evaluated. Raises UsageError if none is right."""

    @abstractmethod
    def left(self, task: Task) -> str:
        """Describe what is left of the budget of a task; empty if it has no limits."""

    @abstractmethod
    def abort(self) -> None:
        """End what is under way, for nobody waits for it any more."""

    @abstractmethod
    def _counted(self, task: Task, timed: bool) -> AbstractContextManager[None]:
        """Count an evaluation, which is recorded when the context ends. Raises BudgetSpent."""

    def _held(self) -> AbstractContextManager[None]:
        """Keep other processes from evaluating in the same run."""
        return nullcontext()

    def task(self, name: str | None = None) -> Task:
        """Return a task by its id or the end of it; the only one if none is named. Raises UsageError."""
        return task_named(name, self.tasks)

    def tried(self, task: Task) -> list[Attempt]:
        """Return the files of a task so far; the place of each is its number."""
        return searched(self.database.attempts(task.id))

    def describe(self, task: Task) -> TaskDescription:
        """Return what there is to know of a task. Raises TaskError."""
        self.begin(task)
        tried, written = self.tried(task), languages_for(self.config.evaluation.written_for)
        start = tried[0].candidate.language if tried else written[0]
        language = start if start in written else written[0]  # others have no guide
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
        candidate = candidate_of(source, author, idea)
        with self._held():
            return self.result(task, self._evaluated(task, candidate, timed))

    def result(self, task: Task, number: int) -> FileResult:
        """Return the recorded result of a file. Raises UsageError."""
        recorded = [each for each in self.database.attempts(task.id) if not each.confirms]
        if not 0 <= number < len(recorded):
            raise UsageError(f"there is no file {number}", _files(len(recorded)))
        return file_result(self.database, task.id, number, searched(recorded), recorded[number].id)

    def history(self, task: Task) -> TaskHistory:
        return history_of(self.database, task.id)

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

    def _evaluated(self, task: Task, candidate: Candidate, timed: bool) -> int:
        """Return the number of a file, which is evaluated and recorded unless it was."""
        tried = self.tried(task)
        if (known := known_number(candidate, timed, tried)) is not None:
            return known
        with self._counted(task, timed):
            evaluation = self._evaluation(task, candidate, timed, tried)
            profile = self.pool.profile(task, candidate, evaluation)
            with self._recording:
                tried = self.tried(task)
                if (known := known_number(candidate, timed, tried)) is not None:  # by another thread
                    return known
                attempt = Attempt(candidate, evaluation, profile)
                self._recorder.attempt(task, len(tried), attempt, None, confirms=False)
                return len(tried)

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


def task_named(name: str | None, tasks: Sequence[Task]) -> Task:
    """Return a task by its id or the end of it; the only one if none is named. Raises UsageError."""
    ids = ", ".join(task.id for task in tasks)
    if name is None:
        if len(tasks) != 1:
            raise UsageError("there are several tasks", f"name one of {ids}")
        return tasks[0]
    found = [task for task in tasks if name in (task.id, task.id.rpartition("/")[2])]
    if len(found) != 1:
        raise UsageError(f"there is no task {name!r}", f"name one of {ids}")
    return found[0]


def history_of(database: RunDatabase, task: str) -> TaskHistory:
    recorded = [each for each in database.attempts(task) if not each.confirms]
    tried = searched(recorded)
    files = (file_result(database, task, number, tried, each.id) for number, each in enumerate(recorded))
    table = tried_table(tried) or "No file was evaluated yet."
    return TaskHistory(task=task, files=tuple(files), best=best_number(tried), said=table)


def file_result(
    database: RunDatabase,
    task: str,
    number: int,
    tried: Sequence[Attempt],
    attempt_id: int,
    confirmed: Attempt | None = None,
) -> FileResult:
    attempt = confirmed or tried[number]
    evaluation, profile, score = attempt.evaluation, attempt.profile, score_of(attempt.evaluation)
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
        speed_of_light_score=round(score, 2) if score is not None else None,
        bottleneck=profile.bottleneck if profile is not None else "",
        best=best_number(tried),
        said=told(shown, number),
    )


def candidate_of(source: str, author: str, idea: str) -> Candidate:
    """Return the candidate of a file. Raises UsageError if it is none."""
    if len(source) > MOST_CHARACTERS:
        raise UsageError(f"the file has {len(source)} characters", f"{MOST_CHARACTERS} are allowed")
    language = language_of(source)
    if language == "torch":
        raise UsageError(
            "the file has no kernels of its own", "write Triton, CUDA or C++ kernels; see the guide"
        )
    return Candidate(source=source, language=language, author=author, idea=printable(idea, 200))


def _files(number: int) -> str:
    return f"files are 0 to {number - 1}" if number else "check or measure one first"
