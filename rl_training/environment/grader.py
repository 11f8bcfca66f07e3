"""The grader of replies: the pool of evaluations, with the state that turns evaluations into rewards."""

import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Protocol

from kernelwright.agent.llm.coder import PromptSpec
from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.evaluator import EFFORTS, QUICK, Effort, Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Stages, Task, Verdict
from kernelwright.profiling.records import Profile
from kernelwright.rl_training.environment.form import ReplyForm, WholeFiles
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.outcome import Outcome, failed, outcome_of
from kernelwright.rl_training.rewards.hacks import Case, HackMemory
from kernelwright.rl_training.rewards.remeasure import BestSoFar, Doubt, lower
from kernelwright.rl_training.rewards.reward_input import RewardInput
from kernelwright.rl_training.rewards.scheme import Reward, Scheme
from kernelwright.rl_training.trajectory import SpentSeconds


class Pool(Protocol):
    """Protocol of `kernelwright.agent.profiled.ProfilingPool`, as far as it is needed here."""

    def submit(
        self,
        task: Task,
        candidate: Candidate,
        measurement: Measurement = Measurement(),
        client: str = "",
    ) -> Future[Evaluation]: ...

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation: ...

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile | None: ...


@dataclass(frozen=True)
class GradedReply:
    """A graded reply. `attempt`: as a run would have it; None without a verdict."""

    candidate: Candidate
    usable: bool  # whether the reply held a file at all
    outcome: Outcome
    reward: Reward
    attempt: Attempt | None
    repeats: Case | None = None
    spent: SpentSeconds | None = None


@dataclass
class Grader:
    """Thread-safe grader of replies. `patience_s`: the time to wait for a verdict, queueing included.

    Replies of one turn should all be begun before the first result is awaited: the pool builds and verifies
    several at a time, and times them one by one.
    """

    pool: Pool
    scheme: Scheme
    effort: Effort = QUICK
    again: Effort = EFFORTS["full"]  # of what is too good to be believed at once
    patience_s: float = 1800.0
    doubt: Doubt = field(default_factory=Doubt)
    best: BestSoFar = field(default_factory=BestSoFar)
    hacks: HackMemory | None = None
    author: str = "policy"
    form: ReplyForm = field(default_factory=WholeFiles)

    def __post_init__(self) -> None:
        assert self.again != self.effort, "the pool would give the first measurement again"

    def begin(
        self,
        data: TaskData,
        asked: PromptSpec,
        reply: str,
        history: Sequence[Attempt] = (),
        earlier: Sequence[Outcome] = (),
        profiled: bool = False,
    ) -> "PendingReply":
        """Submit a reply.

        `earlier`: outcomes of the turns before it; `profiled`: its profile is needed later.
        """
        read = self.form.read(data, asked, reply, history, self.author)
        if data.winner is not None:
            self.best.raise_to(data.task.id, data.winner.speedup.low)
        if read.fault:
            found: Future[Evaluation] = Future()
            found.set_result(self.pool.rejected(data.task, read.candidate, read.fault))
        else:
            found = self.submit(data.task, read.candidate, self.effort)
        answered = _Answered(found)
        return PendingReply(
            self, data, read.candidate, read.usable, found, tuple(earlier), profiled, answered
        )

    def submit(self, task: Task, candidate: Candidate, effort: Effort) -> Future[Evaluation]:
        """Have a candidate timed against the baselines of the reward."""
        measurement = Measurement(tuple(self.scheme.baselines), effort)
        return self.pool.submit(task, candidate, measurement, client=task.id)

    def evaluation(self, task: Task, candidate: Candidate, first: Future[Evaluation]) -> Evaluation | Outcome:
        """Return the evaluation that counts: for a surprising speedup, the lower of two measurements.

        Returns an Outcome if there is no verdict.
        """
        until = time.monotonic() + self.patience_s
        found = _waited_for(first, until)
        if isinstance(found, Outcome) or found.verdict is not Verdict.correct:
            return found
        if self.doubt.about(outcome_of(found).low("eager"), self.best.of(task.id)):
            second = _waited_for(self.submit(task, candidate, self.again), until)
            if isinstance(second, Outcome):
                return second  # what is doubted does not count unless it is confirmed
            found = lower(found, second).model_copy(update={"stages": found.stages.and_then(second.stages)})
        self.best.learn(task.id, found)
        return found

    def graded(
        self,
        task: Task,
        candidate: Candidate,
        found: Evaluation | Outcome,
        usable: bool = True,
        earlier: tuple[Outcome, ...] = (),
    ) -> tuple[Outcome, Reward, Case | None]:
        """Return the outcome of what was found of a candidate, its reward, and the known hack it repeats."""
        outcome = found if isinstance(found, Outcome) else outcome_of(found)
        repeats = None
        if self.hacks is not None and usable:
            repeats = self.hacks.caught(task.id, candidate.sha256, candidate.source, outcome)
        source = candidate.source if usable else ""
        seen = RewardInput(outcome, source, earlier, repeats.candidate if repeats is not None else "")
        return outcome, self.scheme(seen), repeats


@dataclass(frozen=True)
class PendingReply:
    """A reply under evaluation."""

    grader: Grader
    data: TaskData
    candidate: Candidate
    usable: bool
    found: Future[Evaluation]
    earlier: tuple[Outcome, ...]
    profiled: bool
    answered: "_Answered"

    def result(self) -> GradedReply:
        """Wait for the verdict. A failure of the evaluator is an outcome, not an exception."""
        grader, task = self.grader, self.data.task
        found = grader.evaluation(task, self.candidate, self.found)
        outcome, reward, repeats = grader.graded(task, self.candidate, found, self.usable, self.earlier)
        attempt = spent = None
        if not isinstance(found, Outcome):
            spent = self.answered.spent(found.stages)
            attempt = Attempt(self.candidate, found, self._profile(found))
        return GradedReply(self.candidate, self.usable, outcome, reward, attempt, repeats, spent)

    def _profile(self, evaluation: Evaluation) -> Profile | None:
        if not self.profiled:
            return None
        try:
            return self.grader.pool.profile(self.data.task, self.candidate, evaluation)
        except InfrastructureError:
            return None  # the verdict stands


class _Answered:
    """When an evaluation was answered: how long it was queued, and whether it was there before.

    An answer that came in less time than its stages take was not evaluated for this request.
    """

    def __init__(self, evaluation: Future[Evaluation]) -> None:
        self._since = time.monotonic()
        self._until: float | None = None
        evaluation.add_done_callback(self._note)

    def _note(self, _: Future[Evaluation]) -> None:
        self._until = time.monotonic()

    def spent(self, stages: Stages) -> SpentSeconds:
        # A future tells those who wait before it calls back.
        elapsed_s = (time.monotonic() if self._until is None else self._until) - self._since
        return SpentSeconds(
            queue=max(0.0, elapsed_s - stages.total_s),
            build=stages.build_s,
            verify=stages.verify_s,
            time=stages.time_s,
            cached=elapsed_s < stages.total_s,
        )


def _waited_for(future: Future[Evaluation], until: float) -> Evaluation | Outcome:
    try:
        return future.result(max(0.0, until - time.monotonic()))
    except TimeoutError:
        future.cancel()
        return failed("patience", "no verdict came in time")
    except TaskError as error:
        return failed("task", error.message)
    except InfrastructureError as error:
        return failed("evaluator", error.message)
    except CancelledError:
        return failed("evaluator", "the pool of evaluations was closed")
