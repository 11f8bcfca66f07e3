"""A run: many tasks, every result recorded before the next step begins.

Tasks are worked on in lanes: one after the other, or some at a time, of which one times at a time.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from pydantic import JsonValue

from agent.llm.budget import Allowance
from agent.llm.model import ModelError
from agent.llm.session import ModelSession, Roles
from agent.loop import Loop
from agent.protocols import Attempt, Coder
from agent.rules import RulesJudge
from agent.search import Beam, BestOfN, Refine, Search, StopRules
from agent.tracing import trace
from kernelbench.errors import InfrastructureError, MissingPrerequisite, TaskError, UsageError
from kernelbench.evaluator import BASELINES, Evaluator
from kernelbench.machine import compiler
from kernelbench.records import Advice, Candidate, Record, Task
from results.database import RunDatabase
from results.records import TaskState
from results.wording import headline

Say = Callable[[str], None]
SEARCHES = ("refine", "best-of-n", "beam")


class Settings(Record):
    """What a run was asked to do; kept in its database, and taken from there by --resume."""

    coder: str = "builtin"
    judge: str = "rules"
    search: str = "refine"
    rounds: int = 4
    target_speedup: float | None = None
    patience: int | None = None
    target: str = "cpu"
    baselines: tuple[str, ...] = BASELINES
    own_kernels: float = 0.0
    effort: str = "full"
    roles: Roles | None = None  # of language models, where coder and judge are such
    run_limit: Allowance = Allowance()  # what they may take
    task_limit: Allowance = Allowance()

    def checked(self) -> "Settings":
        """These settings. Raises UsageError or MissingPrerequisite when they cannot be followed."""
        known = {
            "coder": ("builtin", "llm"),
            "judge": ("rules", "llm"),
            "search": SEARCHES if self.coder == "llm" else SEARCHES[:1],
            "target": ("cpu",),
        }
        for name, values in known.items():
            given = getattr(self, name)
            if given not in values:
                with_coder = " with --coder builtin" if name == "search" and self.coder == "builtin" else ""
                raise UsageError(
                    f"--{name} {given} is not in this version{with_coder}", f"choose {' or '.join(values)}"
                )
        if (self.coder == "llm") != (self.judge == "llm"):
            raise UsageError(
                "the rules judge reads schedules that only the builtin coder writes, an llm judge code",
                "give --coder llm --judge llm, or neither",
            )
        if (self.coder == "llm") != (self.roles is not None):
            raise UsageError("--coder llm and --model belong together", "give both, or neither")
        if self.rounds < 1:
            raise UsageError(f"--rounds {self.rounds} leaves nothing to do", "give at least 1")
        if self.patience is not None and self.patience < 1:
            raise UsageError(f"--patience {self.patience} ends before it begins", "give at least 1")
        if compiler() is None:
            raise MissingPrerequisite(
                "C++ kernels need a C++ compiler",
                "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX",
            )
        return self

    @property
    def stop_rules(self) -> StopRules:
        return StopRules(rounds=self.rounds, target_speedup=self.target_speedup, patience=self.patience)

    def to_json(self) -> dict[str, JsonValue]:
        return self.model_dump(mode="json")


class _Stopped(Exception):  # noqa: N818 - a state
    """The run is being ended: nothing more is recorded."""


@dataclass
class DatabaseRecorder:
    """Puts attempts into the run database, and a line about each into the log."""

    database: RunDatabase
    evaluator: Evaluator
    say: Say
    stopped: threading.Event

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None:
        """Raises _Stopped in a run that is being ended, whose workers may have been killed."""
        if self.stopped.is_set():
            raise _Stopped
        evaluation = attempt.evaluation
        with self.evaluator.computing():
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


@dataclass
class _Computing:
    """A coder that computes on the cores that are timed on: it waits while another lane times."""

    coder: Coder
    evaluator: Evaluator

    def propose(
        self, task: Task, history: Sequence[Attempt], advice: Advice | None, sample: int = 0
    ) -> Candidate:
        with self.evaluator.computing():
            return self.coder.propose(task, history, advice, sample)


def carry_out(
    database: RunDatabase,
    evaluator: Evaluator,
    settings: Settings,
    out_of_time: Callable[[], str | None],
    say: Say,
    advance: Callable[[str], None],
    lanes: int = 1,
    models: ModelSession | None = None,
) -> bool:
    """Work through the pending tasks of the run; False when some are left (budget, infrastructure).

    `say` gets a line for people per event, `advance` the id of every task that is begun or done, `lanes` is
    how many are worked on at a time. Where one lane fails, the others are ended; what they had under way is
    not recorded.
    """

    work = _Work(database, settings, out_of_time, say, advance, models)
    lanes = min(lanes, len(work.pending))
    if lanes <= 1:
        return work.lane(evaluator)

    def lane() -> bool:
        with evaluator.sibling() as mine:
            return work.lane(mine)

    running: list[Future[bool]] = []
    with ThreadPoolExecutor(lanes, "lane") as executor:
        try:
            running += [executor.submit(lane) for _ in range(lanes)]
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            return False not in [future.result() for future in ended]  # raises what one of them raised
        finally:
            work.stopped.set()
            if not all(future.done() for future in running):
                if models is not None:
                    models.abort()
                evaluator.pool.abort()


class _Work:
    """The pending tasks of a run, and what its lanes share."""

    def __init__(
        self,
        database: RunDatabase,
        settings: Settings,
        out_of_time: Callable[[], str | None],
        say: Say,
        advance: Callable[[str], None],
        models: ModelSession | None,
    ) -> None:
        self.database, self.settings, self.out_of_time = database, settings, out_of_time
        self.models = models
        self.say, self.advance = say, advance
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self.pending = []
        for entry in database.tasks():
            if entry.state is TaskState.done:
                advance("")
            else:
                self.pending.append(entry.task)

    def lane(self, evaluator: Evaluator) -> bool:
        """Take tasks until there are none; whether all of them could be done."""
        coder, search = self._coder_and_search(evaluator)
        loop = Loop(
            coder=coder,
            search=search,
            evaluator=evaluator,
            baselines=self.settings.baselines,
            recorder=DatabaseRecorder(self.database, evaluator, self.say, self.stopped),
            out_of_time=self.out_of_time,
        )
        complete = True
        while (task := self._next()) is not None:
            reason = self.out_of_time() or (self.models.budget.spent_by(None) if self.models else None)
            if reason is not None:
                self.say(f"{task.id}: not begun, {reason}")
                complete = False
                continue
            self.advance(task.id)
            complete &= self._one_task(loop, task)
            self.advance("")
        return complete

    def _coder_and_search(self, evaluator: Evaluator) -> tuple[Coder, Search]:
        rules = self.settings.stop_rules
        if self.models is not None:
            coder, judge = self.models.coder(evaluator), self.models.judge(evaluator)
            match self.settings.search:
                case "best-of-n":
                    return coder, BestOfN(rules)
                case "beam":
                    return coder, Beam(judge, rules)
                case _:
                    return coder, Refine(judge, rules)
        from agent.builtin.coder import BuiltinCoder  # imports torch, which other commands do without

        builtin = BuiltinCoder(lambda task: trace(evaluator.pool, task))
        return _Computing(builtin, evaluator), Refine(RulesJudge(), rules)

    def _next(self) -> Task | None:
        with self._lock:
            return self.pending.pop(0) if self.pending and not self.stopped.is_set() else None

    def _one_task(self, loop: Loop, task: Task) -> bool:
        started = time.monotonic()
        history = [
            Attempt(attempt.candidate, attempt.evaluation, attempt.profile, attempt.advice)
            for attempt in self.database.attempts(task.id)
            if not attempt.confirms
        ]
        spent = sum(attempt.evaluation.stages.total_s for attempt in history)
        try:
            if not history:
                with loop.evaluator.computing():
                    findings = loop.evaluator.session(task).oracle.audit()
                self.database.record_audit(task.id, "; ".join(findings), measures_nothing="; ".join(findings))
            reason = loop.optimize(task, history)
        except _Stopped:
            return False
        except TaskError as error:
            if self.stopped.is_set():
                return False
            reason = f"the task fails: {error}"
            self.say(f"{task.id}: {reason}")
        except (InfrastructureError, ModelError) as error:
            if not self.stopped.is_set():
                self.say(f"{task.id}: left for --resume: {error}")
            return False
        self.database.finish_task(task.id, reason, spent + time.monotonic() - started)
        return True
