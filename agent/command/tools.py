"""Referee's tools as a coding agent has them that works for a run: one task, within the budget of the run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kernelwright.agent.numbered_files import best_number, is_right
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import Attempt, Recorder
from kernelwright.agent.search.agent import was_measured
from kernelwright.agent.spending.budget import BudgetSpent, Evaluations
from kernelwright.agent.tool.records import FileResult
from kernelwright.agent.tool.referee_tools import RefereeTools
from kernelwright.kernelbench.errors import TaskError, UsageError
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.results.store.database import RunDatabase


class AttemptTools(RefereeTools):
    """Tools of one attempt. `failure`: that the task itself does not work, once that is known."""

    def __init__(
        self,
        config: RunConfig,
        database: RunDatabase,
        pool: ProfilingPool,
        recorder: Recorder,
        task: Task,
        evaluations: Evaluations,
        reason_to_end: Callable[[Sequence[Attempt]], str | None],
        author: str,
    ) -> None:
        """`reason_to_end`: why nothing more may be evaluated, given what was tried; None if it may."""
        super().__init__(config, database, pool, recorder, [task])
        self._evaluations, self._reason_to_end, self._author = evaluations, reason_to_end, author
        self.failure: TaskError | None = None
        self._timing = 0  # files under way

    def begin(self, task: Task) -> None:
        """Do nothing: the run has evaluated the seed."""

    def abort(self) -> None:
        """Do nothing: others wait for the pool of the run."""

    def submit(
        self, task: Task, source: str | None = None, *, author: str = "", idea: str = ""
    ) -> FileResult:
        """Return the result of the fastest file, which the run confirms when the attempt has ended."""
        if source is not None:
            found = self.evaluate(task, source, timed=True, idea=idea)
            if not found.right:
                return found
        tried = self.tried(task)
        right = [number for number, attempt in enumerate(tried) if is_right(attempt)]
        if not right:
            raise UsageError("no file is right yet", "check and measure one that is")
        best = best_number(tried)
        found = self.result(task, best if best is not None else right[-1])
        said = f"{found.said}\nSubmitted: it is confirmed when this attempt has ended."
        return found.model_copy(update={"said": said})

    def evaluate(
        self, task: Task, source: str, *, timed: bool, author: str = "", idea: str = ""
    ) -> FileResult:
        """Evaluate a file, as `RefereeTools` does; its author is that of the attempt."""
        return super().evaluate(task, source, timed=timed, author=self._author, idea=idea)

    def left(self, task: Task) -> str:
        evaluations = self._evaluations.left(task.id)
        said = [f"{self._timed_left(task)} timed files"]
        said += [] if evaluations is None else [f"{evaluations} evaluations"]
        return f"{' and '.join(said)} left"

    def _timed_left(self, task: Task) -> int:
        """Return how many files may still be timed, those under way being counted."""
        timed = sum(
            attempt.candidate.origin == "round" and was_measured(attempt) for attempt in self.tried(task)
        )
        return max(0, self.config.search.rounds - timed - self._timing)

    @contextmanager
    def _counted(self, task: Task, timed: bool) -> Iterator[None]:
        with self._recording:
            reason = self._reason_to_end(self.tried(task))
            if reason is None and timed and self._timing and not self._timed_left(task):
                reason = "the last ones are being timed"
            if reason is not None:
                raise BudgetSpent(f"no more files: {reason} — submit, and stop")
            self._evaluations.begin(task.id)
            self._timing += timed
        try:
            yield
        finally:
            with self._recording:
                self._timing -= timed

    def _evaluation(
        self, task: Task, candidate: Candidate, timed: bool, tried: Sequence[Attempt]
    ) -> Evaluation:
        try:
            return super()._evaluation(task, candidate, timed, tried)
        except TaskError as error:
            self.failure = error
            raise
