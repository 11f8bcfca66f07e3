"""A run: many tasks at a time, every result recorded before the next step begins.

Tasks wait for language models, and for their turn in the slots of a ProfilingPool: models write while
candidates are built and verified, and one slot times at a time.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait

from kernelwright.agent.budget import BudgetSpent, Evaluations, deadline
from kernelwright.agent.config import MODEL_TASKS, RunConfig
from kernelwright.agent.llm.model import EndpointUnusable, ModelError
from kernelwright.agent.llm.session import ModelSession
from kernelwright.agent.loop import TaskLoop
from kernelwright.agent.pooled_coder import PooledBuiltinCoder
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.progress import RunProgress
from kernelwright.agent.protocols import Coder, searched
from kernelwright.agent.recorder import DatabaseRecorder, Stopped
from kernelwright.agent.search import Search, Team
from kernelwright.agent.tuner.advise import RulesJudge
from kernelwright.agent.tuner.memory import LessonMemory
from kernelwright.agent.tuner.posterior import expected_speedups
from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.records import Task
from kernelwright.results.lessons.lessons import Effect
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskRun, TaskState


class Run:
    """The pending tasks of a run, and what those that work on them share."""

    def __init__(
        self,
        config: RunConfig,
        database: RunDatabase,
        pool: ProfilingPool,
        models: ModelSession | None = None,
        learned: Sequence[Effect] = (),
        progress: RunProgress | None = None,
    ) -> None:
        """`learned`: effects that other runs have measured."""
        self.config, self.database, self.pool, self.models = config, database, pool, models
        self.progress = progress or RunProgress()
        self.stopped = threading.Event()
        self._out_of_time = deadline(config.budget.max_minutes)
        self._lock = threading.Lock()
        entries = database.tasks()
        self.pending = [entry for entry in entries if entry.state is TaskState.pending]
        self.progress.done(len(entries) - len(self.pending))
        self.begun = database.evaluations()
        self.evaluations = Evaluations(
            config.budget.max_evaluations,
            config.budget.max_evaluations_per_task,
            self.begun,
            [entry.task.id for entry in self.pending],
        )
        memory = LessonMemory(database, learned) if config.tuner.memory else None
        coders, search = self._coders_and_search(memory)
        self.loop = TaskLoop(
            coders=coders,
            search=search,
            evaluator=pool,
            evaluations=self.evaluations,
            baselines=config.evaluation.compared_with,
            recorder=DatabaseRecorder(database, pool.timing_lock, self.progress, self.stopped, memory),
            out_of_time=self._no_more_rounds,
            estimates=expected_speedups,
        )

    def execute(self) -> bool:
        """Work through the pending tasks; False when some are left (budget, infrastructure).

        Where one task raises, the others are ended; what they had under way is not recorded. Raises
        EndpointUnusable where no model answers.
        """
        at_once = self.config.execution.tasks_at_once or (MODEL_TASKS if self.models else self.pool.slots)
        at_once = max(1, min(at_once, len(self.pending)))
        running: list[Future[bool]] = []
        with ThreadPoolExecutor(at_once, "task") as executor:
            try:
                running += [executor.submit(self._work) for _ in range(at_once)]
                ended, _ = wait(running, return_when=FIRST_EXCEPTION)
                return False not in [future.result() for future in ended]  # raises what one of them raised
            finally:
                self.stopped.set()
                if not all(future.done() for future in running):
                    self.pool.abort()  # first: who times keeps the models waiting
                    if self.models is not None:
                        self.models.abort()

    def _work(self) -> bool:
        """Take tasks until there are none; whether all of them could be done."""
        complete = True
        while (entry := self._next()) is not None:
            task = entry.task
            if (reason := self._not_begun(task)) is not None:
                self.progress.say(f"{task.id}: not begun, {reason}")
                complete = False
                continue
            self.progress.begin(task.id)
            try:
                history = searched(self.database.attempts(task.id))
                if not history:
                    findings = "; ".join(self.pool.audit(task))
                    self.database.record_audit(task.id, findings, measures_nothing=findings)
                self.database.finish_task(task.id, self.loop.optimize(task, history))
            except (Stopped, CancelledError):
                complete = False
            except TaskError as error:
                complete &= self._failed(task, error)
            except EndpointUnusable:
                raise  # the other tasks would fare no better
            except (InfrastructureError, ModelError, BudgetSpent) as error:
                complete = False
                if not self.stopped.is_set():
                    self.progress.say(f"{task.id}: left for --resume: {error}")
            self.progress.done()
        return complete

    def _next(self) -> TaskRun | None:
        with self._lock:
            return self.pending.pop(0) if self.pending and not self.stopped.is_set() else None

    def _not_begun(self, task: Task) -> str | None:
        """Why a task is not begun; of one that was, the winner may still be measured."""
        reason = self._out_of_time()
        if reason is None and task.id not in self.begun:
            reason = self.evaluations.spent(task.id)
            if reason is None and self.models is not None:
                reason = self.models.budget.spent_by(None)
        return reason

    def _no_more_rounds(self, task: Task) -> str | None:
        limit = self.config.budget.max_minutes_per_task
        if limit is not None and self.database.seconds(task.id) > 60 * limit:
            return f"{limit:g} minutes are spent on this task"
        return self._out_of_time()

    def _failed(self, task: Task, error: TaskError) -> bool:
        """Record that a task cannot be optimized; False where that is because the run is being ended."""
        if self.stopped.is_set():
            return False
        self.evaluations.done(task.id)
        reason = f"the task fails: {error}"
        self.progress.say(f"{task.id}: {reason}")
        self.database.finish_task(task.id, reason)
        return True

    def _coders_and_search(self, memory: LessonMemory | None) -> tuple[Mapping[str, Coder], Search]:
        """Coders by the names that the search asks for them by; "" is the one it has without more ado."""
        options, hold = self.config.search, frozenset(self.config.tuner.hold)
        builtin = PooledBuiltinCoder(self.pool, self.config.builtin_language)
        if self.models is None:
            tuner = RulesJudge(options.rounds, memory, hold)
            return {"": builtin}, options.begin(Team(tuner, hold=hold))
        models = self.models
        writers: dict[str, Coder] = {
            name: models.coder(self.pool, memory, name) for name in models.roles.languages
        }
        coders: dict[str, Coder] = {"": next(iter(writers.values())), **writers, "builtin": builtin}
        team = Team(
            RulesJudge(memory=memory),
            models.judge(self.pool, memory),
            writers=("builtin", *writers),
        )
        return coders, options.begin(team)
