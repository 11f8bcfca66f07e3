"""The loop of `run --coder command`: a step of a task is an attempt of a coding agent.

The agent works in a workspace of its own and calls the referee there; every file that it checks or measures
is an attempt of the task's history, recorded as it comes. What it has left in `kernel.py` is measured when
it ends. A run that is killed goes on in the same workspace. The winner is confirmed as that of any search.
"""

import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from kernelwright.agent.command import confinement
from kernelwright.agent.command.attempts import EndedAttempt, TaskAttempts, last_line
from kernelwright.agent.command.confinement import Confinement
from kernelwright.agent.command.tools import AttemptTools
from kernelwright.agent.loop import TaskLoop
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import Attempt, searched
from kernelwright.agent.recorder import Stopped
from kernelwright.agent.search import Agent, Stop, best_of
from kernelwright.agent.search.agent import was_measured
from kernelwright.agent.spending.budget import BudgetSpent
from kernelwright.agent.tool.referee_tools import MOST_CHARACTERS
from kernelwright.agent.tool.workspace import Server, Workspace
from kernelwright.kernelbench.errors import InfrastructureError, UsageError
from kernelwright.kernelbench.records import Task
from kernelwright.results.store.database import RunDatabase

_CANNOT_RUN = (126, 127)  # exit status of a shell that does not find a command, or may not run it


@dataclass(kw_only=True)
class CommandLoop(TaskLoop):
    """Takes tasks on by a command. `workspaces`: the folder of all workspaces, in that of the run."""

    config: RunConfig
    database: RunDatabase
    pool: ProfilingPool
    workspaces: Path
    stopped: threading.Event
    say: Callable[[str], None]

    @property
    def rules(self) -> Agent:
        assert isinstance(self.search, Agent)
        return self.search

    def rounds(self, tried: Sequence[Attempt]) -> int:
        return sum(was_measured(attempt) for attempt in tried if attempt.candidate.origin == "round")

    def advance(self, task: Task, tried: list[Attempt], most: int | None = None) -> str | None:
        """Have the command make one attempt; returns why the task ends, None if it may go on.

        Raises what `TaskLoop.advance` does, and InfrastructureError if the command cannot be run.
        """
        if (reason := self._reason_to_end(task, tried)) is not None:
            if not tried:
                raise BudgetSpent(reason)
            return reason
        folder = self.workspaces.resolve()
        confined = Confinement(folder.parent, tuple(self._secrets(task)))
        attempts = TaskAttempts(folder / task.slug, task.id, confined)
        ended, options = attempts.ended(), self.config.model
        if len(ended) >= options.attempts:
            return f"{len(ended)} attempts" if len(ended) > 1 else "1 attempt"
        if (why := confinement.why_not()) is not None and not ended:
            self.say(f"{task.id}: the command is not confined: {why}")
        self._attempt_by_command(task, tried, attempts, len(ended) + 1)
        tried[:] = searched(self.database.attempts(task.id))
        return None

    def _attempt_by_command(
        self, task: Task, tried: Sequence[Attempt], attempts: TaskAttempts, number: int
    ) -> None:
        from kernelwright.agent.tool.server import ServedRun, Tools  # imports mcp
        from kernelwright.agent.tool.transport import served_here

        options = self.config.model
        author = f"command:{options.program}/{number}"
        tools = AttemptTools(
            self.config,
            self.database,
            self.pool,
            self.recorder,
            task,
            self.evaluations,
            lambda tried: self._reason_to_end(task, tried),
            author,
        )
        served = Tools(ServedRun(lambda _: nullcontext(tools)), None)
        token = secrets.token_hex(16)
        with served_here(served.server(), token) as url:
            workspace = attempts.opened(number, tools.describe(task), _start(task, tried), Server(url, token))
            self.say(f"{task.id}: attempt {number} of {options.program} in {workspace.path}")
            before, began = len(tools.tried(task)), time.monotonic()
            try:
                status, why = attempts.run(
                    workspace,
                    options.command or "",
                    60 * options.attempt_minutes,
                    lambda: self._stops(task, tools),
                )
            finally:
                served.close(wait=True)
        if self.stopped.is_set():
            raise Stopped
        last = self._measured_at_the_end(task, tools, workspace)
        if tools.failure is not None:
            raise tools.failure
        files = len(tools.tried(task)) - before
        if not why and status in _CANNOT_RUN and not files:
            said = last_line(workspace.path.with_name(f"{workspace.path.name}.log"))
            raise InfrastructureError(f"--command cannot be run: {said}", "see whether it is installed")
        took = time.monotonic() - began
        attempts.record(EndedAttempt(number=number, seconds=took, exit_status=status, why=why, files=files))
        how = why or f"exit status {status}"
        attempts.close(workspace, f"End of attempt {number}: {files} files, {how}")
        self.say(f"{task.id}: attempt {number} took {took / 60:.1f} minutes, {how}: {files} files{last}")

    def _secrets(self, task: Task) -> Iterator[Path]:
        """Yield what a command could reach the evaluator by, or read the hidden sizes of its task in."""
        if (token := self.config.evaluation.server_token) is not None:
            yield token
        if len(task.visible) < len(task.workload):
            for name in self.config.tasks.tasks:
                yield from (path for path in (Path(name), Path(name.rpartition(":")[0])) if path.is_file())

    def _measured_at_the_end(self, task: Task, tools: AttemptTools, workspace: Workspace) -> str:
        """Measure what is in `kernel.py`, unless it was; returns why that cannot be, if it cannot."""
        kernel = workspace.kernel
        try:
            found = kernel.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_CHARACTERS:  # a pipe is never read
                return "; kernel.py is no file of kernels"
            tools.evaluate(task, kernel.read_text(encoding="utf-8-sig"), timed=True)
        except (OSError, UnicodeDecodeError, UsageError, BudgetSpent) as error:
            return f"; kernel.py was not measured: {error}"
        return ""

    def _stops(self, task: Task, tools: AttemptTools) -> str | None:
        """Return why an attempt is ended now; None if it may go on."""
        if self.stopped.is_set():
            return "the run is being ended"
        return str(tools.failure) if tools.failure is not None else self.out_of_time(task)

    def _reason_to_end(self, task: Task, tried: Sequence[Attempt]) -> str | None:
        """Return why nothing more may be evaluated; None if it may."""
        if (reason := self._spent(task)) is not None:
            return reason
        step = self.rules.step(task, tried)
        return step.reason if isinstance(step, Stop) else None


def _start(task: Task, tried: Sequence[Attempt]) -> str:
    """Return the file that an attempt begins with: the best so far, else the reference by another name."""
    best = best_of(tried) or next(iter(tried), None)
    return best.candidate.source if best else task.source.replace("class Model(", "class ModelNew(")
