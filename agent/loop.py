"""The loop: propose, evaluate, profile, advise, step by step; then measure the winner once more."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from kernelwright.agent.attempts import next_step, repeated, written
from kernelwright.agent.protocols import Attempt, Coder, NoCandidate, ProfilingEvaluator, Recorder, SeedSource
from kernelwright.agent.repairs import Repairs
from kernelwright.agent.search import Request, Search, Stop, best_of, rounds_of, wrong_ceiling
from kernelwright.agent.spending.budget import BudgetSpent, Evaluations, ShareSpent
from kernelwright.agent.winners import confirm, speedup_of
from kernelwright.kernelbench.evaluator import SEARCH, Measurement
from kernelwright.kernelbench.records import Advice, Candidate, Task

SEARCHED = Measurement(("eager",), SEARCH)


@dataclass
class TaskLoop:
    """Takes tasks on step by step, in any order. Everything it holds is shared by all of them."""

    coders: Mapping[str, Coder]  # by the names that requests have for them
    search: Search
    evaluator: ProfilingEvaluator
    evaluations: Evaluations  # that may be spent
    baselines: tuple[str, ...]  # that the winner is held against; the search holds against eager
    recorder: Recorder
    out_of_time: Callable[[Task], str | None]  # why no further round of a task may start, or None
    estimates: Callable[[Sequence[Attempt]], Mapping[str, float]]  # speedups over eager, by sha256
    repairs: Repairs | None = None
    first: Measurement = SEARCHED  # until something is timed; of later ones `SEARCHED`

    def begin(self, task: Task, tried: list[Attempt], seeds: Sequence[SeedSource]) -> None:
        """Append the seeds of a task. Raises NoSeed, and what `advance` does."""
        for seed in seeds:
            tried.append(self._attempt(task, tried, None, partial(seed, task)))

    def advance(self, task: Task, tried: list[Attempt], most: int | None = None) -> str | None:
        """Take the next step of the search, of `most` candidates at most, and append them to `tried`.

        Returns why there is no further step; None if there may be. Where a share of the budget is spent, the
        step ends early. Raises TaskError when the task itself does not work, a ModelError when a model does
        not, BudgetSpent when nothing could be tried.
        """
        if (reason := self._spent(task)) is not None:
            if not tried:
                raise BudgetSpent(reason)
            return reason
        try:
            self._repair(task, tried)
            step = next_step(task, tried, self.search, self.evaluator, self.recorder)
            if isinstance(step, Stop):
                return step.reason
            if (reason := self.evaluations.spent(task.id)) is not None:
                raise BudgetSpent(reason)
            self._try(task, tried, step[: self.evaluations.left(task.id)][:most])
        except ShareSpent:
            pass
        except BudgetSpent as spent:
            if not tried:
                raise
            return str(spent)
        return None

    def rounds(self, tried: Sequence[Attempt]) -> int:
        """Return how many of `--rounds` a history is."""
        return len(rounds_of(tried))

    def finish(self, task: Task, tried: Sequence[Attempt], reason: str) -> str:
        """Confirm the winner of a task that ends for this `reason`; returns all reasons in words."""
        measure = partial(self._measured_again, task, number=len(tried))
        fallbacks = [partial(coder.fallback, task, tried) for coder in self.coders.values()]
        confirmed = confirm(tried, self.estimates(tried), measure, fallbacks)
        self.evaluations.done(task.id)
        unconfirmed = None if confirmed else "no evaluation was left to confirm the winner"
        return "; ".join(filter(None, (reason, unconfirmed, wrong_ceiling(tried))))

    def _try(self, task: Task, tried: list[Attempt], requests: Sequence[Request]) -> None:
        """Append an attempt for each request. Raises BudgetSpent once what was paid for is evaluated."""
        refusal: BudgetSpent | None = None
        waiting = len(requests)
        writing = written(self.coders, task, tuple(tried), requests, partial(self._spent, task))
        with closing(writing) as candidates:
            for request, write in candidates:
                waiting -= 1
                try:
                    tried.append(self._attempt(task, tried, request.advice, write))
                    self._repair(task, tried, waiting)
                except ShareSpent:  # the next step asks for the rest, in its order
                    raise
                except BudgetSpent as spent:
                    refusal = refusal or spent
        if refusal is not None:
            raise refusal

    def _spent(self, task: Task) -> str | None:
        """Return why nothing more may be tried on a task now; None if something may."""
        return self.out_of_time(task) or self.evaluations.spent(task.id)

    def _repair(self, task: Task, tried: list[Attempt], waiting: int = 0) -> None:
        """Append the repairs of the last round, as long as its file fails and there may be more.

        `waiting`: files that are written and have yet to be evaluated.
        """
        while self.repairs is not None and (failed := self.repairs.subject(tried)) is not None:
            left = self.evaluations.left(task.id)
            if self._spent(task) is not None or (left is not None and left <= waiting):
                return  # the next step says so
            write = partial(self.repairs.repaired, task, tuple(tried), failed)
            tried.append(self._attempt(task, tried, failed.advice, write))

    def _attempt(
        self, task: Task, tried: Sequence[Attempt], advice: Advice | None, write: Callable[[], Candidate]
    ) -> Attempt:
        try:
            candidate = write()
            evaluation = repeated(candidate, tried)
            if evaluation is None:
                self.evaluations.begin(task.id)
                to_beat = speedup_of(best_of(tried), self.estimates(tried))
                told = any(other.evaluation.timing or other.evaluation.operators for other in tried)
                measurement = replace(SEARCHED if told else self.first, to_beat=to_beat)
                evaluation = self.evaluator.evaluate(task, candidate, measurement)
        except NoCandidate as none:
            candidate = none.candidate
            evaluation = self.evaluator.rejected(task, candidate, none.reason)
        profile = self.evaluator.profile(task, candidate, evaluation)
        attempt = Attempt(candidate, evaluation, profile, advice)
        self.recorder.attempt(task, len(tried), attempt, advice, confirms=False)
        return attempt

    def _measured_again(self, task: Task, candidate: Candidate, number: int) -> Attempt:
        self.evaluations.begin_last(task.id)
        evaluation = self.evaluator.evaluate(task, candidate, Measurement(self.baselines))
        attempt = Attempt(candidate, evaluation, self.evaluator.profile(task, candidate, evaluation))
        self.recorder.attempt(task, number, attempt, None, confirms=True)
        return attempt
