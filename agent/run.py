"""A run: many tasks, one after the other, every result recorded before the next step begins."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue

from agent.loop import Loop
from agent.protocols import Attempt
from agent.rules import RulesJudge
from agent.search import Refine
from agent.tracing import trace
from kernelbench.errors import InfrastructureError, MissingPrerequisite, TaskError, UsageError
from kernelbench.evaluator import BASELINES, Evaluator
from kernelbench.machine import compiler
from kernelbench.records import Advice, Record, Task
from results.database import RunDatabase
from results.records import TaskState
from results.wording import headline

Say = Callable[[str], None]


class Settings(Record):
    """What a run was asked to do; kept in its database, and taken from there by --resume."""

    coder: str = "builtin"
    judge: str = "rules"
    search: str = "refine"
    rounds: int = 4
    target: str = "cpu"
    baselines: tuple[str, ...] = BASELINES
    own_kernels: float = 0.0
    quick: bool = False

    def checked(self) -> "Settings":
        """These settings. Raises UsageError or MissingPrerequisite when they cannot be followed."""
        known = {"coder": ("builtin",), "judge": ("rules",), "search": ("refine",), "target": ("cpu",)}
        for name, values in known.items():
            given = getattr(self, name)
            if given not in values:
                raise UsageError(f"--{name} {given} is not in this version", f"choose {' or '.join(values)}")
        if self.rounds < 1:
            raise UsageError(f"--rounds {self.rounds} leaves nothing to do", "give at least 1")
        if compiler() is None:
            raise MissingPrerequisite(
                "the builtin coder needs a C++ compiler",
                "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX",
            )
        return self

    def to_json(self) -> dict[str, JsonValue]:
        return self.model_dump(mode="json")


@dataclass
class DatabaseRecorder:
    """Puts attempts into the run database, and a line about each into the log."""

    database: RunDatabase
    say: Say

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None:
        evaluation = attempt.evaluation
        self.database.record_attempt(
            task.id, number, attempt.candidate, advice, evaluation, attempt.profile, confirms=confirms
        )
        speedup = evaluation.speedup.eager if evaluation.speedup is not None else None
        what = "confirmed" if confirms else f"round {number}"
        how = f"{headline(speedup)} vs eager" if speedup is not None else evaluation.reason
        self.say(f"{task.id}: {what}: {evaluation.verdict}, {how}")
        if evaluation.timing is not None:
            for name, why in evaluation.timing.failed_baselines.items():
                self.say(f"{task.id}: no baseline {name}: {why.splitlines()[0]}")


def carry_out(
    database: RunDatabase,
    evaluator: Evaluator,
    settings: Settings,
    out_of_budget: Callable[[], str | None],
    say: Say,
    advance: Callable[[str], None],
) -> bool:
    """Work through the pending tasks of the run; False when some are left (budget, infrastructure).

    `say` gets a line for people per event, `advance` the id of every task that is begun or done.
    """
    from agent.builtin.coder import BuiltinCoder  # imports torch, which other commands do without

    loop = Loop(
        coder=BuiltinCoder(lambda task: trace(evaluator.pool, task)),
        search=Refine(RulesJudge(), settings.rounds),
        evaluator=evaluator,
        baselines=settings.baselines,
        recorder=DatabaseRecorder(database, say),
        out_of_budget=out_of_budget,
    )
    complete = True
    for entry in database.tasks():
        if entry.state is TaskState.done:
            advance("")
            continue
        reason = out_of_budget()
        if reason is not None:
            say(f"{entry.task.id}: not begun, {reason}")
            complete = False
            continue
        advance(entry.task.id)
        complete &= _one_task(database, loop, entry.task, say)
        advance("")
    return complete


def _one_task(database: RunDatabase, loop: Loop, task: Task, say: Say) -> bool:
    started = time.monotonic()
    history = [
        Attempt(attempt.candidate, attempt.evaluation, attempt.profile)
        for attempt in database.attempts(task.id)
        if not attempt.confirms
    ]
    spent = sum(attempt.evaluation.stages.total_s for attempt in history)
    try:
        if not history:
            findings = loop.evaluator.session(task).oracle.audit()
            database.record_audit(task.id, "; ".join(findings), measures_nothing="; ".join(findings))
        reason = loop.optimize(task, history)
    except TaskError as error:
        reason = f"the task fails: {error}"
        say(f"{task.id}: {reason}")
    except InfrastructureError as error:
        say(f"{task.id}: left for --resume: {error}")
        return False
    database.finish_task(task.id, reason, spent + time.monotonic() - started)
    return True
