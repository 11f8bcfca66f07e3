"""Requests of searches, rules for stopping, and the best attempt of a history."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, Self

import typer
from pydantic import Field

from kernelwright.agent.protocols import Attempt, BranchingJudge, Judge
from kernelwright.agent.search.rounds import Rounds, rounds_of
from kernelwright.kernelbench.languages import GPU_LANGUAGES
from kernelwright.kernelbench.options import Section
from kernelwright.kernelbench.records import Advice, Record, Task, Verdict
from kernelwright.kernelbench.speed_of_light import left_in_words, lowest_score, trusted_share
from kernelwright.profiling.roofline import in_words

_IN_A_ROW = 3  # failures, then the next file begins afresh


@dataclass(frozen=True)
class Request:
    """Ask the coder for a candidate, with this advice; the first time there is none.

    `sample` tells apart what is asked for at a time, `seen` is how much of the history the coder knows then,
    `coder` which of several it is. `afresh`: with an approach of its own, made from none of the files so far.
    """

    advice: Advice | None = None
    sample: int = 0
    seen: int = 0
    coder: str = ""
    afresh: bool = False


@dataclass(frozen=True)
class Stop:
    reason: str


class Search(Protocol):
    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        """Return the requests to make now, all at a time, given what was tried; at least one.

        Raises what a judge does: a ModelError, BudgetSpent.
        """
        ...

    def advised_on(self, task: Task, history: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return the correct attempts that `step` will have a judge advise on, as far as that is known."""
        ...


class StopOptions(Section):
    """Options of all searches."""

    rounds: Annotated[int, Field(ge=1), typer.Option(help="Candidates for each task.")] = 4
    target_speedup: Annotated[float | None, typer.Option(help="Stop at this speedup over eager.")] = None
    target_score: Annotated[
        float | None,
        Field(gt=0, le=1),
        typer.Option(help="Stop at this speed-of-light score, 0 to 1."),
    ] = None
    patience: Annotated[int | None, Field(ge=1), typer.Option(help="Stop after N rounds without a gain.")] = (
        None
    )
    all_tasks: Annotated[
        bool, typer.Option("--all-tasks", help="Keep tasks that eager runs near the roofline.")
    ] = False

    @property
    def stop_rules(self) -> "StopRules":
        return StopRules(
            rounds=self.rounds,
            target_speedup=self.target_speedup,
            target_score=self.target_score,
            patience=self.patience,
        )


@dataclass(frozen=True)
class Team:
    """Those a search works with. `writers`: names of the coders that compete in it."""

    tuner: Judge  # proposes schedules of the builtin coder
    judge: BranchingJudge | None = None  # advises on code; None where the builtin coder is alone
    writers: tuple[str, ...] = ()
    hold: Set[str] = frozenset()  # knobs that stay as they are, by their names without the kernel


class RegisteredSearch(ABC):
    """Base of the searches that `--search` can name; each declares its own options and checks them."""

    name: ClassVar[str]
    works_with: ClassVar[frozenset[str]]  # values of --coder that it works with
    several_languages: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def begin(cls, options: Any, team: Team) -> Self:
        """Return a search with its own options, which are among all `options`."""

    @abstractmethod
    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        """Return the next requests, as `Search` does."""

    def advised_on(self, task: Task, history: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return the attempts to be advised on, as `Search` does; none where no judge is asked."""
        return ()

    @staticmethod
    def check(options: Any, coder: str, timed: bool) -> None:
        """Raise UsageError for options that do not go together; `timed`: kernels can be timed here."""
        return


class StopRules(Record):
    """Rules that end a task, beside the budget of its run."""

    rounds: int
    target_speedup: float | None = None  # over eager; the interval's lower bound must reach it
    target_score: float | None = None  # at the lower bound of the speedup
    patience: int | None = None  # rounds without a gain
    near_ceiling: float = 0.95  # share of the speed of light; one beyond it ends nothing (`wrong_ceiling`)

    def reached(self, history: Sequence[Attempt]) -> str | None:
        """Describe the rule that is reached; None to go on."""
        best, rounds = best_of(history), rounds_of(history)
        if best is not None:
            low = lower_bound(best)
            if self.target_speedup is not None and low >= self.target_speedup:
                return f"at least {low:.2f} times as fast as eager, {self.target_speedup:g} was asked for"
            share, score = trusted_share(best.evaluation), lowest_score(best.evaluation)
            if share is not None and share >= self.near_ceiling:
                return f"{min(share, 1.0):.0%} of what the roofline allows"
            if self.target_score is not None and score is not None and score >= self.target_score:
                return (
                    f"a speed-of-light score of at least {score:.2f}, {self.target_score:g} was asked for: "
                    f"{left_in_words(best.evaluation)}"
                )
        if len(rounds) >= self.rounds:
            return f"{self.rounds} rounds"
        if rounds.last and needs_a_gpu(rounds.last[-1]) and not _is_ranked(rounds.last[-1]):
            return "right, but what it takes cannot be timed here: the kernels need a GPU"
        since = len(rounds) - 1 - _last_gain(rounds) if len(rounds) else 0
        if self.patience is not None and since >= self.patience:
            return f"no gain in {since} rounds"
        return None


def wrong_ceiling(history: Sequence[Attempt]) -> str | None:
    """Describe the ceiling that the best attempt shows to be wrong; None if there is none."""
    best = best_of(history)
    if best is None or best.profile is None or not best.profile.ceiling_is_wrong:
        return None
    return in_words(best.profile)


def best_of(history: Sequence[Attempt]) -> Attempt | None:
    """Return the correct attempt with the highest lower bound of its speedup over eager."""
    return max(correct(history), key=lower_bound, default=None)


def correct(attempts: Sequence[Attempt]) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.evaluation.verdict is Verdict.correct]


def lower_bound(attempt: Attempt) -> float:
    """Lower bound of the 95% interval of the speedup over eager; 0.0 if unmeasured."""
    speedup = attempt.evaluation.speedup
    return speedup.eager.low if speedup is not None and speedup.eager is not None else 0.0


def needs_a_gpu(attempt: Attempt) -> bool:
    """Return True if its kernels gave right answers and there is nothing to time them on."""
    evaluation = attempt.evaluation
    if evaluation.correctness is None:  # they did not run, for one
        return False
    of_gpu = attempt.candidate.language in GPU_LANGUAGES
    return evaluation.verdict is Verdict.unmeasured and of_gpu and evaluation.target.device == "cpu"


def _is_ranked(attempt: Attempt) -> bool:
    """Return True if predictions rank its schedule among others of the builtin coder."""
    return bool(attempt.candidate.schedule) and attempt.evaluation.predicted_us is not None


def without_advice(rounds: Rounds, number: int, coder: str = "") -> Request:
    """Return the request of a round that knows no more than the seed; every second one begins afresh.

    What is shown a kernel stays close to it; what is not may find another way.
    """
    seeds = len(rounds.seeds)
    return Request(sample=number, seen=seeds, coder=coder, afresh=seeds > 0 and number % 2 == 1)


def stuck(seeds: Sequence[Attempt], failures: Sequence[Attempt]) -> bool:
    """Return True where files failed three times in a row, or six, and so on, and none was ever correct."""
    return bool(failures) and len(failures) % _IN_A_ROW == 0 and not correct([*seeds, *failures])


def _last_gain(rounds: Rounds) -> int:
    """Return the last round whose interval lies above the best median before it, or that gains as predicted.

    If there is none: the first, or where there is a seed, which a gain is held against, -1.
    """
    last, best = -1 if rounds.seeds else 0, 0.0
    least_us = math.inf  # predicted, where nothing is timed
    for number, attempt in enumerate([*rounds.seeds, *rounds.last], -len(rounds.seeds)):
        speedup, predicted_us = attempt.evaluation.speedup, attempt.evaluation.predicted_us
        if predicted_us is not None and predicted_us < least_us:
            last, least_us = max(last, number), predicted_us
        if attempt.evaluation.verdict is not Verdict.correct or speedup is None or speedup.eager is None:
            continue
        if speedup.eager.low > best and number >= 0:
            last = number
        best = max(best, speedup.eager.median)
    return last
