"""An audit: each kernel of an archive evaluated and recorded, whatever becomes of the others.

The kernels of a task are recorded as its rounds, numbered as its samples. What has no evaluation yet when an
audit ends is evaluated when it goes on.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelwright.agent.audit.grades import KernelGrade
from kernelwright.agent.audit.plan import AuditPlan
from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.errors import KernelwrightError, TaskError
from kernelwright.kernelbench.evaluator import LocalEvaluator, Measurement, TimingLock
from kernelwright.kernelbench.languages import GPU_LANGUAGES
from kernelwright.kernelbench.records import Candidate, Evaluation, Target, Task, Verdict
from kernelwright.kernelbench.without_gpu import EmulatedEvaluator
from kernelwright.profiling.records import Profile
from kernelwright.results.archives.records import PublishedKernel
from kernelwright.results.formatting import one_line
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskRun, TaskState

AUTHOR = "archive"
_FAILS = "the task fails: "
_DONE = "all its kernels are graded"
LEFT = "left for --resume"
_LONGEST = 300  # characters of a line


class GradingPool(Protocol):
    """Evaluations side by side, one of which is timed at a time; see `ProfilingPool`."""

    @property
    def slots(self) -> int: ...

    @property
    def target(self) -> Target: ...

    @property
    def timing_lock(self) -> TimingLock: ...

    def evaluate(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation: ...

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile | None: ...

    def ask(self, task: Task, do: Callable[[LocalEvaluator], Any], client: str) -> Future[Any]: ...

    def abort(self) -> None: ...


def candidate_of(kernel: PublishedKernel) -> Candidate:
    """Return the kernel as a candidate."""
    return Candidate(source=kernel.source, language=language_of(kernel.source), author=AUTHOR)


@dataclass
class Audit:
    """The kernels of an archive, of which a database holds the tasks and what is known so far.

    `say` is told how many kernels are done, and a line on the last; one without a task is not evaluated.
    """

    database: RunDatabase
    pool: GradingPool
    plan: AuditPlan
    baselines: tuple[str, ...]
    say: Callable[[int, str], None] = lambda number, line: None
    _fails: set[str] = field(default_factory=set)  # ids of tasks that do not work

    def execute(self) -> bool:
        """Evaluate what has not been; False where some is left for another time.

        Raises StorageError where nothing more can be recorded.
        """
        tasks = {entry.task.id: entry for entry in self.database.tasks()}
        waiting = self._waiting(tasks)
        measurement, complete = Measurement(self.baselines), True
        number = len(self.plan.archive.kernels) - len(waiting)
        with ThreadPoolExecutor(self.pool.slots, "audit") as executor:
            judging = {
                executor.submit(
                    self._judge, tasks[self.plan.tasks[kernel.name]].task, kernel, measurement
                ): kernel
                for kernel in waiting
            }
            try:
                for future in as_completed(judging):
                    kernel, number = judging[future], number + 1
                    said, recorded = self._recorded(tasks[self.plan.tasks[kernel.name]].task, kernel, future)
                    complete &= recorded
                    self.say(number, f"{kernel.name}: {said}")
            finally:
                if not all(future.done() for future in judging):
                    for future in judging:
                        future.cancel()
                    self.pool.abort()
        self._finish(tasks)
        return complete

    def _waiting(self, tasks: Mapping[str, TaskRun]) -> list[PublishedKernel]:
        """Return the kernels that have a task that works, and no evaluation."""
        graded = {id: {a.round for a in self.database.attempts(id)} for id in tasks}
        waiting: list[PublishedKernel] = []
        for kernel in self.plan.archive.kernels:
            id = self.plan.tasks.get(kernel.name)
            if id is not None and tasks[id].state is TaskState.pending and kernel.sample not in graded[id]:
                waiting.append(kernel)
        return waiting

    def _judge(
        self, task: Task, kernel: PublishedKernel, measurement: Measurement
    ) -> tuple[Candidate, Evaluation, Profile | None] | None:
        """Evaluate a kernel; None where another of its task has shown that the task does not work."""
        if task.id in self._fails:
            return None
        candidate = candidate_of(kernel)
        try:
            if self.pool.target.chips and candidate.language not in GPU_LANGUAGES:
                checked = self.pool.ask(task, lambda each: _on_cpu(each, task, candidate), task.id)
                evaluation = checked.result()
            else:
                evaluation = self.pool.evaluate(task, candidate, measurement)
            return candidate, evaluation, self.pool.profile(task, candidate, evaluation)
        except TaskError:
            self._fails.add(task.id)
            raise

    def _recorded(self, task: Task, kernel: PublishedKernel, judged: Future[Any]) -> tuple[str, bool]:
        """Record what came of a kernel, whatever that is; return a line on it, and False if it is left."""
        try:
            found = judged.result()
        except TaskError as error:
            with self.pool.timing_lock.shared():
                self.database.finish_task(task.id, f"{_FAILS}{error}")
            return one_line(f"not graded: {_FAILS}{error}", _LONGEST), True
        except KernelwrightError as error:
            return one_line(f"{LEFT}: {error}", _LONGEST), False
        except Exception as error:  # noqa: BLE001 - of one kernel, which the others can do without
            return one_line(f"{LEFT}: {type(error).__name__}: {error}", _LONGEST), False
        if found is None:
            return f"not graded: {task.id} does not work", True
        candidate, evaluation, profile = found
        with self.pool.timing_lock.shared():
            self.database.record_attempt(task.id, kernel.sample, candidate, None, evaluation, profile)
        return KernelGrade(kernel, evaluation).line, True

    def _finish(self, tasks: Mapping[str, TaskRun]) -> None:
        """Mark the tasks as done whose kernels all have an evaluation."""
        samples: dict[str, set[int]] = {id: set() for id in tasks}
        for kernel in self.plan.archive.kernels:
            if kernel.name in self.plan.tasks:
                samples[self.plan.tasks[kernel.name]].add(kernel.sample)
        for id, entry in tasks.items():
            if entry.state is TaskState.done or id in self._fails:
                continue
            if samples[id] <= {attempt.round for attempt in self.database.attempts(id)}:
                self.database.finish_task(id, _DONE)


def grades(database: RunDatabase, plan: AuditPlan) -> list[KernelGrade]:
    """Return the grades of an archive's kernels, in its order."""
    entries = {entry.task.id: entry for entry in database.tasks()}
    attempts = {id: {a.round: a for a in database.attempts(id)} for id in entries}
    found: list[KernelGrade] = []
    for kernel in plan.archive.kernels:
        id = plan.tasks.get(kernel.name, "")
        attempt = attempts.get(id, {}).get(kernel.sample)
        if attempt is not None:
            found.append(KernelGrade(kernel, attempt.evaluation))
            continue
        reason = entries[id].stop_reason if id in entries else plan.without.get(kernel.name)
        found.append(KernelGrade(kernel, None, why_not=reason or LEFT))
    return found


def _on_cpu(evaluator: LocalEvaluator, task: Task, candidate: Candidate) -> Evaluation:
    """Return the verdict on what has no GPU kernel, of which emulation has nothing to say."""
    assert isinstance(evaluator, EmulatedEvaluator)
    found = evaluator.checked_on_cpu(task, candidate)
    if found.verdict is not Verdict.unmeasured or found.correctness is None:
        return found
    said = f"right on the CPU; it has no GPU kernel ({candidate.language}), and is not timed"
    return found.model_copy(update={"reason": said})
