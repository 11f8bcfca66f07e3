"""A run: many tasks at a time, every result recorded before the next step begins.

Tasks wait for language models, and for their turn in the slots of a ProfilingPool: models write while
candidates are built and verified, and one slot times at a time.
"""

import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pydantic import JsonValue

from kernelwright.agent.budget import BudgetSpent, Evaluations, SpendingLimits
from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, KERNEL_KNOBS
from kernelwright.agent.llm.model import ModelError
from kernelwright.agent.llm.session import ModelSession, Roles
from kernelwright.agent.loop import Loop
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import Attempt, Coder, searched
from kernelwright.agent.search import Beam, BestOfN, Evolve, Exhaustive, Refine, Search, StopRules
from kernelwright.agent.tracing import trace
from kernelwright.agent.tuner.advise import RulesJudge
from kernelwright.agent.tuner.memory import NOTHING, Learned, Memory, RecordedRanking
from kernelwright.agent.tuner.random_forest import Surrogate
from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite, TaskError, UsageError
from kernelwright.kernelbench.evaluator import BASELINES, COMPILE_S, LocalEvaluator, TimingLock
from kernelwright.kernelbench.machine import compiler
from kernelwright.kernelbench.records import LEAST_OWN, Advice, Candidate, Language, Record, Task
from kernelwright.results.formatting import headline
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskRun, TaskState

if TYPE_CHECKING:
    from kernelwright.agent.builtin.ir.graph import Graph

Say = Callable[[str], None]
SEARCHES = {"builtin": ("refine", "exhaustive"), "llm": ("refine", "best-of-n", "beam", "evolve")}
MODEL_TASKS = 16  # at a time by default, where models write: most of them wait for one


class Settings(Record):
    """What a run was asked to do; kept in its database, and taken from there by --resume."""

    coder: str = "builtin"
    judge: str = "rules"
    search: str = "refine"
    refine_from: str = "best"
    beam_width: int = 3
    beam_advices: int = 2
    islands: int = 4
    hold: tuple[str, ...] = ()
    rank_by: str = "rules"
    rounds: int = 4
    target_speedup: float | None = None
    patience: int | None = None
    target: str = "cpu"
    chips: tuple[str, ...] = ()  # to build GPU kernels for that are not timed, for there is no GPU
    baselines: tuple[str, ...] = BASELINES
    compile_limit_s: float = COMPILE_S  # of each
    own_kernels: float = 0.0
    effort: str = "full"
    check_first: bool = False  # CUDA C++ in emulation, before it takes time of a GPU
    memory: bool = True
    learn_from: tuple[str, ...] = ()
    language: Language = "cpp"  # of the builtin coder's kernels
    roles: Roles | None = None  # of language models, where coder and judge are such
    run_limit: SpendingLimits = SpendingLimits()
    task_limit: SpendingLimits = SpendingLimits()

    def checked(self) -> "Settings":
        """These settings. Raises UsageError or MissingPrerequisite when they cannot be followed."""
        known = {
            "coder": ("builtin", "llm"),
            "judge": ("rules", "llm"),
            "search": SEARCHES.get(self.coder, ()),
            "rank-by": ("rules", "surrogate"),
            "refine-from": ("best", "latest") if self.coder == "llm" else ("best",),
        }
        for name, values in known.items():
            given = getattr(self, name.replace("-", "_"))
            if given not in values:
                with_coder = ""
                if name in ("search", "refine-from"):
                    with_coder = f" with --coder {self.coder}"
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
        if self.roles is not None:
            self._check_languages(self.roles)
        for name in ("rounds", "patience", "beam-width", "beam-advices", "islands"):
            given = getattr(self, name.replace("-", "_"))
            if given is not None and given < 1:
                raise UsageError(f"--{name} {given} leaves nothing to do", "give at least 1")
        for limit in (self.run_limit, self.task_limit):
            if limit.evaluations is not None and limit.evaluations < 2:
                raise UsageError(
                    "a winner is evaluated twice, the second time to be believed",
                    "give --max-evaluations of 2 or more",
                )
        if self.rank_by == "surrogate" and not self.learn_from:
            raise UsageError(
                "a surrogate learns from other runs",
                "give --learn-from RUN; --search exhaustive teaches most",
            )
        moved_on = self.search == "evolve" if self.coder == "llm" else self.search == "refine"
        if self.rank_by != "rules" and not moved_on:
            raise UsageError(
                f"with --coder {self.coder} --search {self.search} there are no moves to rank",
                "leave out --rank-by",
            )
        unknown = [name for name in self.hold if name not in {**GRAPH_KNOBS, **KERNEL_KNOBS}]
        if unknown or (self.hold and self.coder != "builtin"):
            raise UsageError(
                f"--hold {unknown[0]} is no knob" if unknown else "--hold goes with --coder builtin",
                f"the builtin coder's knobs are {', '.join([*GRAPH_KNOBS, *KERNEL_KNOBS])}",
            )
        if self.coder == "builtin":
            self._check_language()
        if self.target == "cpu" and compiler() is None:
            raise MissingPrerequisite(
                "C++ kernels need a C++ compiler",
                "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX",
            )
        return self

    def _check_language(self) -> None:
        """Raises UsageError or MissingPrerequisite."""
        of_gpu = ("triton", "cuda")
        known = ("cpp", *of_gpu) if self.target == "cpu" and not self.chips else of_gpu
        if self.language not in known:
            raise UsageError(
                f"the builtin coder writes no {self.language} kernels for {self.target}",
                f"choose {', '.join(known)}",
            )
        if self.language == "triton" and importlib.util.find_spec("triton") is None:
            raise MissingPrerequisite(
                "Triton kernels need Triton, which checks them on the CPU too", "pip install triton"
            )

    def _check_languages(self, roles: Roles) -> None:
        """Raises UsageError."""
        if len(roles.languages) > 1 and self.search != "evolve":
            raise UsageError(
                f"--search {self.search} has kernels written in one language",
                "give one --language, or --search evolve",
            )
        if self.search == "evolve" and self.rounds <= self.islands:
            raise UsageError(
                f"--rounds {self.rounds} is one generation of {self.islands} islands",
                "give more rounds, or fewer --islands",
            )
        untimed = self.target == "cpu" and not {"triton", "cuda"}.isdisjoint(roles.languages)
        if self.search == "evolve" and untimed:
            raise UsageError(
                "GPU kernels cannot be timed without a GPU, so they cannot compete",
                "give --target cpu --language cpp, or another --search",
            )

    @property
    def stop_rules(self) -> StopRules:
        return StopRules(rounds=self.rounds, target_speedup=self.target_speedup, patience=self.patience)

    def to_json(self) -> dict[str, JsonValue]:
        return self.model_dump(mode="json")


class _Stopped(Exception):  # noqa: N818 - a state
    """The run is being ended: nothing more is recorded."""


@dataclass
class DatabaseRecorder:
    """Puts attempts into the run database, and a line about each into the log; not while a slot times."""

    database: RunDatabase
    timing_lock: TimingLock
    say: Say
    stopped: threading.Event
    memory: Memory | None

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None:
        """Raises _Stopped in a run that is being ended, whose workers may have been killed."""
        if self.stopped.is_set():
            raise _Stopped
        evaluation = attempt.evaluation
        with self.timing_lock.shared():
            self.database.record_attempt(
                task.id, number, attempt.candidate, advice, evaluation, attempt.profile, confirms=confirms
            )
            if self.memory is not None:
                self.memory.learn(task)
        speedup = evaluation.speedup.eager if evaluation.speedup is not None else None
        what = "confirmed" if confirms else f"round {number}"
        how = f"{headline(speedup)} vs eager" if speedup is not None else evaluation.reason.partition("\n")[0]
        if speedup is not None and (evaluation.own_kernel_share or 0.0) < LEAST_OWN:
            how += ", not known to be by kernels of its own"
        self.say(f"{task.id}: {what}: {evaluation.verdict}, {how}")
        if evaluation.timing is not None:
            for name, why in evaluation.timing.failed_baselines.items():
                first_line = why.partition("\n")[0]
                self.say(f"{task.id}: {name} not available: {first_line}")


@dataclass
class PooledBuiltinCoder:
    """The builtin coder, which computes on the cores that are timed on: it has its turns in the slots."""

    pool: ProfilingPool
    language: Language
    _graphs: dict[str, "Graph"] = field(default_factory=dict)  # by task; a trace takes seconds

    def propose(
        self, task: Task, history: Sequence[Attempt], advice: Advice | None, sample: int = 0
    ) -> Candidate:
        own = [attempt for attempt in history if attempt.candidate.author == "builtin"]
        return self.pool.ask(task, partial(self._propose, task, own, advice, sample), task.id).result()

    def _propose(
        self,
        task: Task,
        history: Sequence[Attempt],
        advice: Advice | None,
        sample: int,
        evaluator: LocalEvaluator,
    ) -> Candidate:
        from kernelwright.agent.builtin.coder import (
            BuiltinCoder,  # imports torch, which other commands do without
        )

        def traced(task: Task) -> "Graph":
            if task.sha256 not in self._graphs:
                self._graphs[task.sha256] = trace(evaluator.sessions.pool, task)
            return self._graphs[task.sha256]

        return BuiltinCoder(traced, self.language).propose(task, history, advice, sample)


def execute(
    database: RunDatabase,
    pool: ProfilingPool,
    settings: Settings,
    out_of_time: Callable[[], str | None],
    say: Say,
    advance: Callable[[str], None],
    at_once: int = 1,
    models: ModelSession | None = None,
    learned: Learned = NOTHING,
) -> bool:
    """Work through the pending tasks of the run; False when some are left (budget, infrastructure).

    `say` gets a line for people per event, `advance` the id of every task that is begun or done, `at_once` is
    how many are worked on at a time, `learned` what other runs have found. Where one task raises, the others
    are ended; what they had under way is not recorded.
    """
    work = _Work(database, pool, settings, out_of_time, say, advance, models, learned)
    at_once = max(1, min(at_once, len(work.pending)))
    running: list[Future[bool]] = []
    with ThreadPoolExecutor(at_once, "task") as executor:
        try:
            running += [executor.submit(work.run) for _ in range(at_once)]
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            return False not in [future.result() for future in ended]  # raises what one of them raised
        finally:
            work.stopped.set()
            if not all(future.done() for future in running):
                pool.abort()  # first: who times keeps the models waiting
                if models is not None:
                    models.abort()


class _Work:
    """The pending tasks of a run, and what those that work on them share."""

    def __init__(
        self,
        database: RunDatabase,
        pool: ProfilingPool,
        settings: Settings,
        out_of_time: Callable[[], str | None],
        say: Say,
        advance: Callable[[str], None],
        models: ModelSession | None,
        learned: Learned,
    ) -> None:
        self.database, self.pool, self.settings, self.models = database, pool, settings, models
        self.out_of_time, self.say, self.advance = out_of_time, say, advance
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        entries = database.tasks()
        self.pending = [entry for entry in entries if entry.state is TaskState.pending]
        for _ in range(len(entries) - len(self.pending)):
            advance("")
        self.begun = database.evaluations()
        self.evaluations = Evaluations(
            settings.run_limit.evaluations,
            settings.task_limit.evaluations,
            self.begun,
            [entry.task.id for entry in self.pending],
        )
        ranking = None
        told = Memory(database, learned.effects)
        if settings.rank_by == "surrogate":
            ranking = RecordedRanking(told, Surrogate(learned.examples))
        memory = told if settings.memory else None
        coders, search = self._coders_and_search(memory, ranking)
        self.loop = Loop(
            coders=coders,
            search=search,
            evaluator=pool,
            evaluations=self.evaluations,
            baselines=settings.baselines,
            recorder=DatabaseRecorder(database, pool.timing_lock, say, self.stopped, memory),
            out_of_time=self._out_of_time,
        )

    def run(self) -> bool:
        """Take tasks until there are none; whether all of them could be done."""
        complete = True
        while (entry := self._next()) is not None:
            task = entry.task
            reason = self.out_of_time()
            if reason is None and task.id not in self.begun:  # else its winner may still be measured
                reason = self.evaluations.spent(task.id)
                if reason is None and self.models is not None:
                    reason = self.models.budget.spent_by(None)
            if reason is not None:
                self.say(f"{task.id}: not begun, {reason}")
                complete = False
                continue
            self.advance(task.id)
            complete &= self._one_task(entry)
            self.advance("")
        return complete

    def _coders_and_search(
        self, memory: Memory | None, ranking: RecordedRanking | None
    ) -> tuple[Mapping[str, Coder], Search]:
        """Coders by the names that the search asks for them by; "" is the one it has without more ado."""
        settings, rules = self.settings, self.settings.stop_rules
        builtin = PooledBuiltinCoder(self.pool, settings.language)
        if self.models is None and settings.search == "exhaustive":
            return {"": builtin}, Exhaustive(rules, frozenset(settings.hold))
        if self.models is None:
            judge = RulesJudge(settings.rounds, memory, frozenset(settings.hold), ranking)
            return {"": builtin}, Refine(judge, rules)
        models, mind = self.models, self.models.judge(self.pool, memory)
        writers: dict[str, Coder] = {
            name: models.coder(self.pool, memory, name) for name in models.roles.languages
        }
        coders: dict[str, Coder] = {"": next(iter(writers.values())), **writers, "builtin": builtin}
        match settings.search:
            case "best-of-n":
                return coders, BestOfN(rules)
            case "beam":
                return coders, Beam(mind, rules, settings.beam_width, settings.beam_advices)
            case "evolve":
                own = RulesJudge(memory=memory, ranking=ranking)
                return coders, Evolve(mind, own, rules, ("builtin", *writers), settings.islands)
            case _:
                return coders, Refine(mind, rules, from_latest=settings.refine_from == "latest")

    def _out_of_time(self, task: Task) -> str | None:
        limit = self.settings.task_limit.minutes
        if limit is not None and self.database.seconds(task.id) > 60 * limit:
            return f"{limit:g} minutes are spent on this task"
        return self.out_of_time()

    def _next(self) -> TaskRun | None:
        with self._lock:
            return self.pending.pop(0) if self.pending and not self.stopped.is_set() else None

    def _one_task(self, entry: TaskRun) -> bool:
        task = entry.task
        history = searched(self.database.attempts(task.id))
        try:
            if not history:
                findings = "; ".join(self.pool.audit(task))
                self.database.record_audit(task.id, findings, measures_nothing=findings)
            reason = self.loop.optimize(task, history)
        except (_Stopped, CancelledError):
            return False
        except TaskError as error:
            if self.stopped.is_set():
                return False
            self.evaluations.done(task.id)
            reason = f"the task fails: {error}"
            self.say(f"{task.id}: {reason}")
        except (InfrastructureError, ModelError, BudgetSpent) as error:
            if not self.stopped.is_set():
                self.say(f"{task.id}: left for --resume: {error}")
            return False
        self.database.finish_task(task.id, reason)
        return True
