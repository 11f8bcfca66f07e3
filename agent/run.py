"""A run: many tasks at a time, step by step, every result recorded before the next step begins.

The scheduler says which task gets the next step. Tasks wait for language models, and for their turn in the
slots of a ProfilingPool: models write while candidates are built and verified, and one slot times at a time.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from enum import Enum

from kernelwright.agent.budget import BudgetSpent, Evaluations, deadline
from kernelwright.agent.config import MODEL_TASKS, RunConfig
from kernelwright.agent.headroom import eager_share, near_roofline
from kernelwright.agent.llm.model import ModelError
from kernelwright.agent.llm.session import ModelSession
from kernelwright.agent.llm.stored import interrupted
from kernelwright.agent.loop import TaskLoop
from kernelwright.agent.pooled_coder import PooledBuiltinCoder
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.progress import RunProgress
from kernelwright.agent.protocols import Attempt, Coder, searched
from kernelwright.agent.recorder import DatabaseRecorder, Stopped
from kernelwright.agent.scheduler import OpenTask, Scheduler, Turn
from kernelwright.agent.search import Search, Team
from kernelwright.agent.status import RunStatus, activities, seconds_left
from kernelwright.agent.tuner.advise import RulesJudge
from kernelwright.agent.tuner.memory import LessonMemory
from kernelwright.agent.tuner.posterior import expected_speedups
from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.records import Task
from kernelwright.results.lessons.lessons import Effect
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskState


class Outcome(Enum):
    """What becomes of a task after one of its turns."""

    goes_on = "goes on"
    done = "done"
    left = "left for --resume"


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
        entries = database.tasks()
        pending = [entry.task for entry in entries if entry.state is TaskState.pending]
        self._tasks, self._ended = len(entries), Counter({Outcome.done: len(entries) - len(pending)})
        self._counting = threading.Lock()
        self.evaluations = Evaluations(
            config.budget.max_evaluations,
            config.budget.max_evaluations_per_task,
            database.evaluations(),
            [task.id for task in pending],
        )
        self.workers = self._workers(len(pending))
        self.scheduler = self._scheduler(pending)
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

        Where one task raises, the others are ended; what they had under way is not recorded.
        """
        self._began, self._share_before = time.monotonic(), self._share_done()
        self.progress.watch(self.status)
        running: list[Future[bool]] = []
        with ThreadPoolExecutor(self.workers, "task") as executor:
            try:
                running += [executor.submit(self._work) for _ in range(self.workers)]
                ended, _ = wait(running, return_when=FIRST_EXCEPTION)
                return False not in [future.result() for future in ended]  # raises what one of them raised
            finally:
                self.stopped.set()
                self.scheduler.close()
                if not all(future.done() for future in running):
                    self.pool.abort()  # first: who times keeps the models waiting
                    if self.models is not None:
                        self.models.abort()

    def _work(self) -> bool:
        """Take turns of tasks until there are none; whether all of them could be done."""
        complete = True
        while (turn := self.scheduler.take()) is not None:
            outcome = self.play(turn)
            with self._counting:
                self._ended[outcome] += 1
            complete &= outcome is not Outcome.left
            self.scheduler.put_back(turn, done=outcome is not Outcome.goes_on)
        return complete

    def play(self, turn: Turn) -> Outcome:
        """Take the next step of a task; if there is none, confirm its winner and record that it is done."""
        task, tried = turn.open.task, turn.open.tried
        if (reason := self._not_begun(task, tried)) is not None:
            self.progress.say(f"{task.id}: not begun, {reason}")
            return Outcome.left
        try:
            if not tried:
                findings = "; ".join(self.pool.audit(task))
                self.database.record_audit(task.id, findings, measures_nothing=findings)
            reason = self._near_roofline(task, tried)
            if reason is None:
                with self._share(turn):
                    reason = self.loop.advance(task, tried, turn.candidates)
            if reason is None:
                return Outcome.goes_on
            self.database.finish_task(task.id, self.loop.finish(task, tried, reason))
        except (Stopped, CancelledError):
            return Outcome.left
        except TaskError as error:
            return self._failed(task, error)
        except (InfrastructureError, ModelError, BudgetSpent) as error:
            if not self.stopped.is_set():
                self.progress.say(f"{task.id}: left for --resume: {error}")
            return Outcome.left
        return Outcome.done

    def status(self) -> RunStatus:
        """Return how far the run is. From any thread."""
        budget, limits = self.models.budget if self.models is not None else None, self.config.budget.run
        calls = budget.under_way if budget is not None else []
        spent = budget.spent_on(None) if budget is not None else None
        done, took_s = self._share_done(), time.monotonic() - self._began
        return RunStatus(
            usd=spent.usd if spent is not None else None,
            tokens=spent.tokens if spent is not None else 0,
            max_usd=limits.usd,
            calls=budget.calls if budget is not None else 0,
            asked=len(calls),
            device="CPU" if self.config.evaluation.device == "cpu" else "GPU",
            queue=self.pool.waiting,
            tasks=self._tasks,
            done=self._ended[Outcome.done],
            begun=sum(each.taken or bool(each.tried) for each in self.scheduler.tasks),
            share=done,
            took_s=took_s,
            left_s=seconds_left(took_s, self._share_before, done, limits.minutes),
            now=activities(self.pool.running, [(call.role, call.task or "") for call in calls]),
        )

    def _share_done(self) -> float:
        """Return the share of the run that is done: of its rounds or, if that is more, of a limit of it."""
        limits, rounds = self.config.budget.run, self.config.search.rounds
        open_tasks = self.scheduler.tasks
        ended = self._tasks - len(open_tasks)
        begun = sum(min(1.0, len(each.tried) / rounds) for each in open_tasks)
        shares = [(ended + begun) / max(1, self._tasks)]
        if self.models is not None:
            shares.append(self.models.budget.spent_on(None).part_of(limits))
        if limits.evaluations:
            shares.append(self.evaluations.total / limits.evaluations)
        return min(1.0, max(shares))

    def _not_begun(self, task: Task, tried: Sequence[Attempt]) -> str | None:
        """Return why a task is not begun; of one that was, the winner may still be measured."""
        if tried:
            return None
        reason = self._out_of_time() or self.evaluations.spent(task.id)
        if reason is None and self.models is not None:
            reason = self.models.budget.spent_by(None)
        return reason

    def _near_roofline(self, task: Task, tried: Sequence[Attempt]) -> str | None:
        """Return why a model is not asked about a task, whose eager is timed before anything is paid."""
        config = self.config
        if self.models is None or not (config.search.skip_near_roofline and config.timed):
            return None
        return near_roofline(eager_share(tried) if tried else self.pool.eager_share(task))

    def _share(self, turn: Turn) -> AbstractContextManager[None]:
        """Limit the first round of a task to its share of what is left."""
        if self.models is None or not turn.waiting:
            return nullcontext()
        return self.models.budget.share(turn.open.task.id, turn.waiting)

    def _workers(self, tasks: int) -> int:
        at_once = self.config.execution.tasks_at_once or (MODEL_TASKS if self.models else self.pool.slots)
        return max(1, min(at_once, tasks))

    def _scheduler(self, pending: Sequence[Task]) -> Scheduler:
        limits = self.config.budget.run
        histories = {task.id: searched(self.database.attempts(task.id)) for task in pending}
        rounds = {name: len(history) for name, history in histories.items()}
        return Scheduler(
            [OpenTask(task, histories[task.id]) for task in pending],
            self._used,
            breadth_first=(limits.usd, limits.tokens, limits.evaluations) != (None, None, None),
            workers=self.workers,
            interrupted=interrupted(self.database.llm_calls(), rounds),
            free_author="builtin" if self.models is not None else None,
        )

    def _used(self, task: str) -> float:
        """Return the largest part of any of the run's limits that a task has used."""
        limits = self.config.budget.run
        used = self.evaluations.had(task) / limits.evaluations if limits.evaluations else 0.0
        return max(used, self.models.budget.spent_on(task).part_of(limits)) if self.models else used

    def _no_more_rounds(self, task: Task) -> str | None:
        limit = self.config.budget.max_minutes_per_task
        if limit is not None and self.database.seconds(task.id) > 60 * limit:
            return f"{limit:g} minutes are spent on this task"
        return self._out_of_time()

    def _failed(self, task: Task, error: TaskError) -> Outcome:
        """Record that a task cannot be optimized, unless that is because the run is being ended."""
        if self.stopped.is_set():
            return Outcome.left
        self.evaluations.done(task.id)
        reason = f"the task fails: {error}"
        self.progress.say(f"{task.id}: {reason}")
        self.database.finish_task(task.id, reason)
        return Outcome.done

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
