"""A run: many tasks at a time, step by step, every result recorded before the next step begins.

The scheduler says which task gets the next step. Tasks wait for language models, and for their turn in the
slots of a ProfilingPool: models write while candidates are built and verified, and one slot times at a time.
"""

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path

from kernelwright.agent.command.loop import CommandLoop
from kernelwright.agent.conversation_loop import ConversationLoop
from kernelwright.agent.display.progress import RunProgress
from kernelwright.agent.display.status import RunStatus, activities, seconds_left
from kernelwright.agent.llm.coder import LlmCoder
from kernelwright.agent.llm.judge import SilentJudge
from kernelwright.agent.llm.model import EndpointUnusable, ModelError
from kernelwright.agent.llm.remaining import Remaining
from kernelwright.agent.llm.session import ModelSession
from kernelwright.agent.llm.stored import interrupted
from kernelwright.agent.loop import SEARCHED, TaskLoop
from kernelwright.agent.options.run import MODEL_TASKS, RunConfig
from kernelwright.agent.parts.parts import TaskParts
from kernelwright.agent.pooled_coder import PooledBuiltinCoder
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import Attempt, BranchingJudge, Coder, Judge, NoSeed, SeedSource, searched
from kernelwright.agent.recorder import DatabaseRecorder, Stopped
from kernelwright.agent.repairs import Repairs
from kernelwright.agent.search import Agent, Search, Team, best_of, rounds_of
from kernelwright.agent.seeds import BuiltinSeed, FileSeed, SeedsApart, missing
from kernelwright.agent.spending.budget import BudgetSpent, Evaluations, deadline
from kernelwright.agent.spending.headroom import eager_share, near_roofline
from kernelwright.agent.spending.scheduler import OpenTask, Scheduler, TaskTurn
from kernelwright.agent.tuner.advise import RulesJudge
from kernelwright.agent.tuner.memory import LessonMemory
from kernelwright.agent.tuner.posterior import expected_speedups
from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import Task
from kernelwright.results.lessons.lessons import Effect
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskRun, TaskState

_CONFIRMING = 3.0  # evaluations of a search that one of its winner takes as long as; by hand, in a few runs


class TurnOutcome(Enum):
    """Outcome of a task's turn."""

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
        workspaces: Path = Path("workspaces"),
    ) -> None:
        """`learned`: effects that other runs have measured; `workspaces`: folder of those of a command."""
        self.config, self.database, self.pool, self.models = config, database, pool, models
        self.progress = progress or RunProgress()
        self.stopped = threading.Event()
        self._out_of_time = deadline(config.budget.max_minutes)
        entries = _parts_first(database.tasks())
        pending = [entry.task for entry in entries if entry.state is TaskState.pending]
        done = [entry.task for entry in entries if entry.state is TaskState.done]
        self._tasks = len(entries)
        self._wholes = sum(entry.task.part is None for entry in entries)
        self._ended = Counter({TurnOutcome.done: sum(task.part is None for task in done)})
        self._counting = threading.Lock()
        self.evaluations = Evaluations(
            config.budget.max_evaluations,
            config.budget.max_evaluations_per_task,
            database.evaluations(),
            [task.id for task in pending],
            [entry.task for entry in entries],
        )
        self.parts = TaskParts(
            database,
            pool,
            models is not None and config.model.parts == "auto" and config.timed,
            config.budget.task,
            self.progress.say,
        )
        self.workers = self._workers(len(pending))
        self.scheduler = self._scheduler(pending, done)
        memory = LessonMemory(database, learned) if config.tuner.memory else None
        builtin = PooledBuiltinCoder(pool, config.builtin_language)
        self.seed = self._seed(builtin)
        writers = self._writers(memory)
        search = self._search(memory, tuple(writers), builtin)
        recorder = DatabaseRecorder(database, pool.timing_lock, self.progress, self.stopped, memory)
        loop: Callable[..., TaskLoop] = TaskLoop
        if config.model.coder == "command":
            loop = partial(
                CommandLoop,
                config=config,
                database=database,
                pool=pool,
                workspaces=workspaces,
                stopped=self.stopped,
                say=self.progress.say,
            )
        elif models and isinstance(search, Agent):
            loop = self._conversations(models, memory)
        self.loop = loop(
            coders={"": next(iter(writers.values()), builtin), **writers, "builtin": builtin},
            search=search,
            evaluator=pool,
            evaluations=self.evaluations,
            baselines=config.evaluation.compared_with,
            recorder=recorder,
            out_of_time=self._no_more_rounds,
            estimates=expected_speedups,
            repairs=Repairs(next(iter(writers.values())), config.model.repairs) if writers else None,
            first=self._first_measurement(),
        )

    def execute(self) -> bool:
        """Work through the pending tasks; False when some are left (budget, infrastructure).

        Where one task raises, the others are ended; what they had under way is not recorded. Raises
        EndpointUnusable where no model answers.
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
            if turn.open.task.part is None:
                with self._counting:
                    self._ended[outcome] += 1
            complete &= outcome is not TurnOutcome.left
            self.scheduler.put_back(turn, done=outcome is not TurnOutcome.goes_on)
        return complete

    def play(self, turn: TaskTurn) -> TurnOutcome:
        """Take the next step of a task; if there is none, confirm its winner and record that it is done."""
        task, tried = turn.open.task, turn.open.tried
        if (reason := self._not_begun(task, tried)) is not None:
            paid = self.models is not None and self.models.budget.spent_on(task.id).tokens > 0
            self.progress.say(f"{task.id}: {'left for --resume: ' if paid else 'not begun, '}{reason}")
            return TurnOutcome.left
        try:
            if not tried and not self.parts.of(task):
                findings = "; ".join(self.pool.audit(task))
                self.database.record_audit(task.id, findings, measures_nothing=findings)
                if not findings and (parts := self.parts.cut(task)):
                    self._add(parts)
                    return TurnOutcome.goes_on
            if not self.loop.rounds(tried):
                self._begin(task, tried)
            if waits_for := self.parts.pending(task):
                self.progress.say(
                    f"{task.id}: left for --resume: {', '.join(waits_for)} must be done before it"
                )
                return TurnOutcome.left
            reason = self._near_roofline(task, tried)
            if reason is None:
                with self._share(turn):
                    reason = self.loop.advance(task, tried, turn.candidates)
            if reason is None:
                return TurnOutcome.goes_on
            self.database.finish_task(task.id, self.loop.finish(task, tried, reason))
        except (Stopped, CancelledError):
            return TurnOutcome.left
        except TaskError as error:
            return self._failed(task, error)
        except EndpointUnusable:
            raise  # the other tasks would fare no better
        except (InfrastructureError, ModelError, BudgetSpent) as error:
            if not self.stopped.is_set():
                self.progress.say(f"{task.id}: left for --resume: {error}")
            return TurnOutcome.left
        return TurnOutcome.done

    def _add(self, parts: Sequence[Task]) -> None:
        self.evaluations.add_parts(parts)
        if self.models is not None:
            self.models.budget.add_parts(parts)
        with self._counting:
            self._tasks += len(parts)
        self.scheduler.add([OpenTask(part) for part in parts])

    def _begin(self, task: Task, tried: list[Attempt]) -> None:
        try:
            self.loop.begin(task, tried, missing(tried, self.parts.together(task), self.seed))
        except NoSeed as none:
            self.progress.say(f"{task.id}: no seed: {none}")

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
            tasks=self._wholes,
            done=self._ended[TurnOutcome.done],
            begun=len(
                {
                    each.task.part.whole if each.task.part is not None else each.task.id
                    for each in self.scheduler.tasks
                    if each.task.part is not None or each.taken or each.tried
                }
            ),
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
        begun = sum(min(1.0, self.loop.rounds(each.tried) / rounds) for each in open_tasks)
        shares = [(ended + begun) / max(1, self._tasks)]
        if self.models is not None:
            shares.append(self.models.budget.spent_on(None).part_of(limits))
        if limits.evaluations:
            shares.append(self.evaluations.total / limits.evaluations)
        return min(1.0, max(shares))

    @property
    def _costs_nothing(self) -> bool:
        """True if the builtin coder is alone; a model, or what a command asks, is paid for."""
        return self.config.model.coder == "builtin"

    def _not_begun(self, task: Task, tried: Sequence[Attempt]) -> str | None:
        """Return why a task is not begun; of one that was, the winner may still be measured."""
        if tried:
            return None
        if self.parts.of(task):  # what they have come to costs no call
            return self.evaluations.spent(task.id)
        reason = self._time_is_over() or self.evaluations.spent(task.id)
        if reason is None and self.models is not None:
            reason = self.models.budget.spent_by(None)
        return reason

    def _near_roofline(self, task: Task, tried: Sequence[Attempt]) -> str | None:
        """Return why a model is not asked about a task, whose eager is timed before anything is paid."""
        config = self.config
        if self._costs_nothing or config.search.all_tasks or not config.timed:
            return None
        share = eager_share(tried)
        if share is None and not len(rounds_of(tried)):  # nor does a seed tell
            share = self.pool.eager_share(task)
        return near_roofline(share)

    def _share(self, turn: TaskTurn) -> AbstractContextManager[None]:
        """Limit the first round of a task to its share of what is left."""
        if self.models is None or not turn.waiting:
            return nullcontext()
        return self.models.budget.share(turn.open.task.id, turn.waiting)

    def _workers(self, tasks: int) -> int:
        at_once = self.config.execution.tasks_at_once or (MODEL_TASKS if self.models else self.pool.slots)
        return max(1, at_once if self.parts.may_cut else min(at_once, tasks))

    def _scheduler(self, pending: Sequence[Task], done: Sequence[Task]) -> Scheduler:
        limits = self.config.budget.run
        tasks, others = (
            [OpenTask(task, searched(self.database.attempts(task.id))) for task in group]
            for group in (pending, done)
        )
        rounds = {each.task.id: len(rounds_of(each.tried)) for each in tasks}
        return Scheduler(
            tasks,
            self._used,
            done=others,
            breadth_first=(limits.usd, limits.tokens, limits.evaluations) != (None, None, None),
            workers=self.workers,
            interrupted=interrupted(self.database.llm_calls(), rounds),
            free_author=None if self._costs_nothing else "builtin",
        )

    def _used(self, task: str) -> float:
        """Return the largest part of any of the run's limits that a task has used."""
        limits = self.config.budget.run
        used = self.evaluations.had(task) / limits.evaluations if limits.evaluations else 0.0
        return max(used, self.models.budget.spent_on(task).part_of(limits)) if self.models else used

    def _no_more_rounds(self, task: Task) -> str | None:
        limit = self.config.budget.task.of_part(task.part).minutes
        if limit is not None:
            seconds = sum(self.database.seconds(each.id) for each in (task, *self.parts.of(task)))
            if seconds > 60 * limit:
                return f"{limit:g} minutes are spent on this task"
        return self._time_is_over()

    def _time_is_over(self) -> str | None:
        """Return why no round may begin; time is kept for the winners of all tasks that were begun."""
        if self.config.budget.max_minutes is None or not self.scheduler.breadth_first:
            return self._out_of_time(0.0)
        histories = [each.tried for each in self.scheduler.tasks]
        took_s = [tried.evaluation.stages.total_s for history in histories for tried in tuple(history)]
        winners = sum(best_of(tuple(history)) is not None for history in histories)
        winners += len({each.task.part.whole for each in self.scheduler.tasks if each.task.part is not None})
        return self._out_of_time(_CONFIRMING * winners * statistics.mean(took_s or [0.0]))

    def _failed(self, task: Task, error: TaskError) -> TurnOutcome:
        """Record that a task cannot be optimized, unless that is because the run is being ended."""
        if self.stopped.is_set():
            return TurnOutcome.left
        self.evaluations.done(task.id)
        reason = f"the task fails: {error}"
        self.progress.say(f"{task.id}: {reason}")
        self.database.finish_task(task.id, reason)
        return TurnOutcome.done

    def _writers(self, memory: LessonMemory | None) -> dict[str, LlmCoder]:
        """Return the coders that ask a model, by their languages."""
        if self.models is None:
            return {}
        return {name: self.models.coder(self.pool, memory, name) for name in self.models.roles.languages}

    def _conversations(
        self, models: ModelSession, memory: LessonMemory | None
    ) -> Callable[..., ConversationLoop]:
        [language] = models.roles.languages
        limits = self.config.budget
        return partial(
            ConversationLoop,
            talks=models.conversations(self.pool, memory, language),
            remaining=Remaining(
                models.budget, self.evaluations, limits.run, limits.task, self.database.seconds
            ),
            compiled=PooledBuiltinCoder(self.pool, language).compiled,
        )

    def _search(
        self, memory: LessonMemory | None, languages: tuple[str, ...], builtin: PooledBuiltinCoder
    ) -> Search:
        options, hold = self.config.search, frozenset(self.config.tuner.hold)
        if self.models is None:
            tuner: Judge = RulesJudge(options.rounds, memory, hold)
            if self.config.tuner.rank_by is not None:
                from kernelwright.agent.tuner.policy.judge import PolicyJudge, TrainedPolicy

                tuner = PolicyJudge(TrainedPolicy.load(self.config.tuner.rank_by), builtin.space, tuner)
            search = options.begin(Team(tuner, hold=hold))
            return SeedsApart(search) if self._costs_nothing else search
        asked = self.config.model.judge != "none"
        judge: BranchingJudge = self.models.judge(self.pool, memory) if asked else SilentJudge()
        return options.begin(Team(RulesJudge(memory=memory), judge, writers=("builtin", *languages)))

    def _seed(self, builtin: Coder) -> SeedSource | None:
        model = self.config.model
        usual: SeedSource | None = None
        if not self._costs_nothing and model.seed != "none":  # else the builtin coder's is the first round
            usual = BuiltinSeed(builtin)
        return FileSeed(model.seed_source, of_parts=usual) if model.seed_source else usual

    def _first_measurement(self) -> Measurement:
        """Return the first measurement of a task; where a model writes, it is told more of the task by it."""
        if self._costs_nothing:
            return SEARCHED
        asked = set(self.config.evaluation.compared_with)
        known = tuple(name for name in ("eager", "compile") if name == "eager" or name in asked)
        return replace(SEARCHED, baselines=known, operators=True)


def _parts_first(entries: Sequence[TaskRun]) -> list[TaskRun]:
    """Return tasks in their order, each after its parts, which are recorded later."""
    parts: dict[str, list[TaskRun]] = {}
    for entry in entries:
        if entry.task.part is not None:
            parts.setdefault(entry.task.part.whole, []).append(entry)
    wholes = [entry for entry in entries if entry.task.part is None]
    return [each for whole in wholes for each in (*parts.get(whole.task.id, ()), whole)]
