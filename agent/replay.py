"""A run once more, offline: what models answered and what evaluations found comes from its database.

Prompts are made and replies read again, so a replay shows whether this version decides as the one that made
the run did.
"""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

from kernelwright.agent.display.progress import log, reported
from kernelwright.agent.llm.session import ModelSession
from kernelwright.agent.options.run import BudgetOptions, ExecutionOptions, RunConfig
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.run import Run
from kernelwright.agent.spending.budget import BudgetSpent
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import LocalEvaluator, Measurement, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Candidate, Evaluation, Target, Task
from kernelwright.profiling.records import Profile
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder


def replay(path: Path, out: Path, as_json: bool) -> int:
    """Go through the run in `path` again, into a new folder; 1 where other decisions were taken.

    Raises StorageError.
    """
    with ExitStack() as stack:
        recorded = stack.enter_context(RunDatabase.open(path, read_only=True))
        if RunConfig.recorded(recorded).model.coder == "command":
            raise UsageError(f"{path} is a run of a command, which cannot be repeated", "see its report")
        folder = stack.enter_context(RunFolder.create(out))
        evaluator = stack.enter_context(Referee.start(cache=cache_folder()))
        database = stack.enter_context(
            RunDatabase.create(
                folder.database,
                settings=recorded.settings,
                target=recorded.run.target,
                environment=recorded.run.environment,
                command=shlex.join(["kernelwright", *sys.argv[1:]]),
                tasks=[entry.task for entry in recorded.tasks()],
            )
        )
        for entry in recorded.tasks():
            database.record_lessons(entry.task.id, entry.lessons)
        unlimited = {  # the run went as far as it went
            "budget": BudgetOptions(),
            "execution": ExecutionOptions(tasks_at_once=1),
        }
        config = RunConfig.recorded(database)
        model = config.model.model_copy(update={"parts": "none"})  # those that it had are recorded
        config = config.model_copy(update={**unlimited, "model": model})
        pool = stack.enter_context(ReplayedEvaluations(evaluator, recorded))
        progress = stack.enter_context(reported(folder, database, as_json))
        roles = config.model.roles()
        models = stack.enter_context(ModelSession.replaying(roles, recorded)) if roles is not None else None
        Run(config, database, pool, models, progress=progress).execute()
        found = differences(recorded, database)
    for difference in found:
        log.print(difference, markup=False, soft_wrap=True)
    log.print("Other decisions than in the run." if found else "The same decisions as in the run.")
    return 1 if found else 0


class ReplayedEvaluations(ProfilingPool):
    """Finds what a run has found; tasks are loaded, for what prompts say of them."""

    def __init__(self, evaluator: LocalEvaluator, recorded: RunDatabase) -> None:
        super().__init__(evaluator, slots=1)
        self._recorded = recorded.run.target
        self._found: dict[tuple[str, str, bool, bool], Evaluation] = {}
        self._profiles: list[tuple[Evaluation, Profile | None]] = []
        for task in recorded.tasks():
            for attempt in recorded.attempts(task.task.id):
                checked = attempt.evaluation.only_checked
                key = task.task.id, attempt.candidate.sha256, attempt.confirms, checked
                self._found.setdefault(key, attempt.evaluation)
                self._profiles.append((attempt.evaluation, attempt.profile))

    @property
    def target(self) -> Target:
        return self._recorded

    def evaluate(
        self,
        task: Task,
        candidate: Candidate,
        measurement: Measurement = Measurement(),
    ) -> Evaluation:
        """Return the recorded evaluation. Raises BudgetSpent for a candidate that the run did not reach."""
        # A search times with less than the protocol's own effort. What a check refuses is not only checked.
        confirms = measurement.timed and measurement.effort is None
        key = task.id, candidate.sha256, confirms
        found = self._found.get((*key, not measurement.timed)) or self._found.get((*key, False))
        if found is None:
            raise BudgetSpent("the run that is replayed went no further")
        return found

    def eager_share(self, task: Task) -> float | None:
        """Return None: the run has answers for the tasks that it has not skipped, and for no others."""
        return None

    def profile(
        self,
        task: Task,
        candidate: Candidate,
        evaluation: Evaluation,
        known: Profile | None = None,
        *,
        closely: bool = False,
    ) -> Profile | None:
        """Return the recorded profile, with everything that later rounds added to it."""
        return next((profile for found, profile in self._profiles if found == evaluation), known)


def _decided(candidate: Candidate) -> Candidate:
    """Return a candidate without the call that it is from, which is no decision."""
    return candidate.model_copy(update={"request": ""})


def differences(recorded: RunDatabase, replayed: RunDatabase) -> list[str]:
    """List the decisions in which two runs of the same tasks differ; empty for a faithful replay."""
    found = []
    for task in recorded.tasks():
        before, after = (
            [
                (_decided(attempt.candidate), attempt.advice, attempt.evaluation.verdict, attempt.confirms)
                for attempt in database.attempts(task.task.id)
            ]
            for database in (recorded, replayed)
        )
        where = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        if where is not None:
            found.append(f"{task.task.id}: attempt {where} is another one")
        elif len(before) != len(after):
            found.append(f"{task.task.id}: {len(after)} attempts, not {len(before)}")
    return found
