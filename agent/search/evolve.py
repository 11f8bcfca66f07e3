"""Evolution on islands, each with an archive of elites; coders compete."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, ClassVar, Self

import typer
from pydantic import Field

from kernelwright.agent.abandonable_pool import abandonable_pool
from kernelwright.agent.protocols import Attempt, BranchingJudge, Judge
from kernelwright.agent.search.base import (
    RegisteredSearch,
    Request,
    Stop,
    StopOptions,
    StopRules,
    Team,
    best_of,
    correct,
    lower_bound,
    stuck,
    without_advice,
)
from kernelwright.agent.search.rounds import Rounds, rounds_of
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Task, Verdict

_FROM_BEST = 0.5  # of an island's candidates are made from its best
_BUILTIN_MOVES = 0.5  # of those made from a kernel of the builtin coder are its own next schedule
_TRANSLATED = 0.15  # of the others are written in another language
_MIGRATION = 3  # generations from one visit to the next


class EvolveOptions(StopOptions):
    islands: Annotated[int, Field(ge=1), typer.Option(help="Number of islands of evolve.")] = 4


@dataclass(frozen=True)
class Evolve(RegisteredSearch):
    """Islands that evolve side by side, a candidate each in every generation; coders compete.

    Each island keeps an archive, the best candidate for each pair of coder and bottleneck, and goes on from
    one of these: often the best, else any, so that a way that is slower now is not lost (MAP-Elites,
    arXiv:1504.04909; islands as in FunSearch, doi:10.1038/s41586-023-06924-6). Every few generations the
    best of the island before comes over. Kernels of the builtin coder begin on the first island, where the
    rules judge moves them on, or a model rewrites them; one that a model wrote may be written again in
    another language.
    """

    name: ClassVar[str] = "evolve"
    works_with: ClassVar[frozenset[str]] = frozenset({"llm"})
    several_languages: ClassVar[bool] = True

    judge: BranchingJudge
    rules_judge: Judge
    rules: StopRules
    coders: tuple[str, ...]  # that compete: "builtin", and models by the language they write
    islands: int = 4

    @classmethod
    def begin(cls, options: EvolveOptions, team: Team) -> Self:
        assert team.judge is not None
        return cls(team.judge, team.tuner, options.stop_rules, team.writers, options.islands)

    @staticmethod
    def check(options: EvolveOptions, coder: str, timed: bool) -> None:
        if options.rounds <= options.islands:
            raise UsageError(
                f"--rounds {options.rounds} is one generation of {options.islands} islands",
                "give more rounds, or fewer --islands",
            )
        if not timed:
            raise UsageError(
                "GPU kernels cannot be timed without a GPU, so they cannot compete",
                "give --target cpu --language cpp, or another --search",
            )

    def advised_on(self, task: Task, history: Sequence[Attempt]) -> Sequence[Attempt]:
        before, size = self._under_way(rounds_of(history))
        if not len(before) or self.rules.reached(history) is not None:
            return ()
        parents = (self._parent(before, i, _chance(task, len(before) + i)) for i in range(size))
        return correct([parent for parent in parents if parent is not None])

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        rounds = rounds_of(history)
        before, size = self._under_way(rounds)
        known = history[: before.attempts]
        with abandonable_pool(size, "judge") as executor:
            made = [executor.submit(self._request, task, known, before, i) for i in range(size)]
            return [request.result() for request in made[len(rounds) - len(before) :]]

    def _under_way(self, rounds: Rounds) -> tuple[Rounds, int]:
        """Return what was before the generation under way, and its size."""
        before = rounds.first(len(rounds) - len(rounds) % self.islands)
        return before, min(self.islands, self.rules.rounds - len(before))

    def _request(self, task: Task, known: Sequence[Attempt], before: Rounds, island: int) -> Request:
        number = len(before) + island
        chance = _chance(task, number)
        models = [name for name in self.coders if name != "builtin"]
        if not len(before):
            # Where it always has the same answer, unless that is the seed.
            home = "builtin" in self.coders and island == 0 and not before.seeds
            return without_advice(before, number, "builtin" if home else models[island % len(models)])
        parent = self._parent(before, island, chance)
        if parent is None:
            model = models[island % len(models)]
            return Request(sample=number, seen=len(known), coder=model, afresh=True)
        if island == 0 and parent.candidate.author == "builtin" and chance.random() < _BUILTIN_MOVES:
            own = [attempt for attempt in known if attempt.candidate.author == "builtin"]
            advice = self.rules_judge.advise(task, own)
            if advice is not None:
                return Request(advice, number, len(known), "builtin")
        language: str = parent.candidate.language
        if language not in models or (len(models) > 1 and chance.random() < _TRANSLATED):
            language = chance.choice([other for other in models if other != language])
        given = [a.advice for a in before.last if a.advice and a.advice.about == parent.candidate.sha256]
        advice = self.judge.advise_on(task, known, parent, given)
        return Request(advice, number, len(known), language)

    def _parent(self, before: Rounds, island: int, chance: Random) -> Attempt | None:
        """One of the island's archive; its last file while nothing there is correct.

        None if it has no file yet, or too many failed in a row: then it begins afresh.
        """
        seeds = before.seeds if island == 0 else ()
        rounds = before.rounds[island :: self.islands]
        files = [each.last for each in rounds if each.usable]
        own, generation = [*seeds, *files], len(before) // self.islands
        if generation % _MIGRATION == 0 and self.islands > 1:
            guest = best_of(before.last[(island - 1) % self.islands :: self.islands])
            own += [guest] if guest is not None else []
        archive: dict[tuple[str, str], Attempt] = {}
        for attempt in sorted(own, key=lower_bound):
            if attempt.evaluation.verdict is Verdict.correct:
                bottleneck = attempt.profile.bottleneck if attempt.profile is not None else "unknown"
                archive[_written_by(attempt), bottleneck] = attempt
        if not archive:
            return None if not own or stuck(seeds, files) else own[-1]
        elites = list(archive.values())
        return max(elites, key=lower_bound) if chance.random() < _FROM_BEST else chance.choice(elites)


def _chance(task: Task, number: int) -> Random:
    """Return the random numbers of one request, the same again when a run goes on."""
    return Random(f"{task.sha256} {number}")


def _written_by(attempt: Attempt) -> str:
    candidate = attempt.candidate
    return "builtin" if candidate.author == "builtin" else candidate.language
