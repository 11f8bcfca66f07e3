"""Searches: what to try next, given all that was tried.

A search has no state. What it asks for follows from the history alone, so a run that was killed in the middle
of several requests made at a time goes on with those that are left.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import Protocol, cast

from agent.builtin.schedule import legal
from agent.protocols import Attempt, Judge, ManyMindedJudge
from agent.side_by_side import threads
from kernelbench.records import Advice, Record, Task, Verdict
from profiling.roofline import in_words

_FROM_BEST = 0.5  # of an island's candidates are made from its best
_BUILTIN_MOVES = 0.5  # of those made from a kernel of the builtin coder are its own next schedule
_TRANSLATED = 0.15  # of the others are written in another language
_MIGRATION = 3  # generations from one visit to the next


@dataclass(frozen=True)
class Request:
    """Ask the coder for a candidate, with this advice; the first time there is none.

    `sample` tells apart what is asked for at a time, `seen` is how much of the history the coder knows then,
    `coder` which of several it is.
    """

    advice: Advice | None = None
    sample: int = 0
    seen: int = 0
    coder: str = ""


@dataclass(frozen=True)
class Stop:
    reason: str


class Search(Protocol):
    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        """What to ask for now, all at a time, given what was tried; at least one.

        Raises what a judge does: a ModelError, BudgetSpent.
        """
        ...


class StopRules(Record):
    """When a task has had enough, beside what its run may spend."""

    rounds: int
    target_speedup: float | None = None  # over eager; the interval's lower bound must reach it
    patience: int | None = None  # rounds without a gain
    near_ceiling: float = 0.95  # share of the speed of light

    def reached(self, history: Sequence[Attempt]) -> str | None:
        """Which rule says stop, in words; None to go on."""
        best = best_of(history)
        if best is not None:
            low = lower_bound(best)
            if self.target_speedup is not None and low >= self.target_speedup:
                return f"at least {low:.2f} times as fast as eager, {self.target_speedup:g} was asked for"
            light = best.profile.speed_of_light if best.profile is not None else None
            if best.profile is not None and light is not None and light >= self.near_ceiling:
                return in_words(best.profile)
        if len(history) >= self.rounds:
            return f"{self.rounds} rounds"
        if history and _needs_a_gpu(history[-1]):
            return "right, but what it takes cannot be timed here: the kernels need a GPU"
        since = len(history) - 1 - _last_gain(history) if history else 0
        if self.patience is not None and since >= self.patience:
            return f"no gain in {since} rounds"
        return None


@dataclass(frozen=True)
class Refine:
    """One candidate a round, each from the Judge's advice on those before it.

    The judge chooses what to go on from, the best or a failure to be mended; `from_latest` always takes the
    last one, as CudaForge does, for comparison. Then the judge must be a ManyMindedJudge.
    """

    judge: Judge
    rules: StopRules
    from_latest: bool = False

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        if not history:
            return [Request()]
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        advice: Advice | None
        if self.from_latest:
            advice = cast(ManyMindedJudge, self.judge).advise_on(task, history, history[-1], ())
        else:
            advice = self.judge.advise(task, history)
        if advice is None:
            return Stop("the judge has nothing left to try")
        return [Request(advice, sample=len(history), seen=len(history))]


@dataclass(frozen=True)
class Exhaustive:
    """Every schedule of the builtin coder, in an order of chance, until there are no more or no more rounds.

    What searches find is held against it. Schedules follow from each other by one knob; some have the same
    code as one before, which is not evaluated again.
    """

    rules: StopRules  # of which the number of rounds counts
    hold: Set[str] = frozenset()  # knobs that stay as they are, by their names without the kernel

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        if not history:
            return [Request()]
        if len(history) >= self.rules.rounds:
            return Stop(f"{self.rules.rounds} rounds")
        schedules = [a.candidate.schedule for a in history]
        known = [*schedules, *(a.advice.schedule for a in history if a.advice is not None)]
        asked = {frozenset(schedule.items()) for schedule in known}
        others = dict.fromkeys(
            frozenset({**each.schedule, knob: value}.items())
            for each in (attempt.candidate for attempt in history)
            for knob in each.schedule
            if knob.rpartition(".")[2] not in {"kernels", *self.hold}
            for value in each.alternatives.get(knob, legal(knob))
        )
        left = sorted(sorted(each) for each in others if each not in asked)
        if not left:
            return Stop("every schedule has been tried")
        chosen = Random(f"{task.sha256} {len(history)}").choice(left)
        advice = Advice(
            bottleneck="not asked",
            method="try every schedule",
            plan=", ".join(f"{knob}={value}" for knob, value in chosen),
            predicted_gain=1.0,
            schedule=dict(chosen),
        )
        return [Request(advice, sample=len(history), seen=len(history))]


@dataclass(frozen=True)
class BestOfN:
    """All candidates at a time, without advice: what more samples gain, beside what a judge does."""

    rules: StopRules

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        left = range(len(history), self.rules.rounds)
        return [Request(sample=number) for number in left] or Stop(f"{self.rules.rounds} candidates")


@dataclass(frozen=True)
class Beam:
    """In every generation several pieces of advice on each of the best few; the first has no advice.

    As CudaForge's and KernelAgent's beams do. While nothing is correct, the last few are corrected.
    """

    judge: ManyMindedJudge
    rules: StopRules
    width: int = 3  # attempts that are gone on from
    advices: int = 2  # on each

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        begun, size = 0, min(self.width, self.rules.rounds)  # of the generation under way
        while begun + size <= len(history):
            begun += size
            before = history[:begun]
            size = min(len(self._parents(before)) * self._each(before), self.rules.rounds - begun)
            if size <= 0:
                return Stop(f"{self.rules.rounds} rounds")
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        return self._generation(task, history[:begun], size)[len(history) - begun :]

    def _generation(self, task: Task, before: Sequence[Attempt], size: int) -> list[Request]:
        if not before:
            return [Request(sample=number) for number in range(size)]

        def advised(parent: Attempt) -> list[Advice]:
            found: list[Advice] = []
            for _ in range(self._each(before)):
                found.append(self.judge.advise_on(task, before, parent, found))
            return found

        parents = self._parents(before)
        with threads(len(parents), "judge") as executor:
            advice = [one for found in executor.map(advised, parents) for one in found]
        begun = len(before)
        return [Request(one, begun + number, seen=begun) for number, one in enumerate(advice[:size])]

    def _parents(self, history: Sequence[Attempt]) -> list[Attempt]:
        """The best few, each file once; the last few while none is correct."""
        correct = [a for a in history if a.evaluation.verdict is Verdict.correct]
        ranked = sorted(correct, key=lower_bound, reverse=True) or list(reversed(history))
        unique: dict[str, Attempt] = {}
        for attempt in ranked:
            unique.setdefault(attempt.candidate.sha256, attempt)
        return list(unique.values())[: self.width]

    def _each(self, history: Sequence[Attempt]) -> int:
        return self.advices if best_of(history) is not None else 1


@dataclass(frozen=True)
class Evolve:
    """Islands that evolve side by side, a candidate each in every generation; coders compete.

    Each island keeps an archive, the best candidate for each pair of coder and bottleneck, and goes on from
    one of these: often the best, else any, so that a way that is slower now is not lost (MAP-Elites,
    arXiv:1504.04909; islands as in FunSearch, doi:10.1038/s41586-023-06924-6). Every few generations the
    best of the island before comes over. Kernels of the builtin coder begin on the first island, where the
    rules judge moves them on, or a model rewrites them; one that a model wrote may be written again in
    another language.
    """

    judge: ManyMindedJudge
    rules_judge: Judge
    rules: StopRules
    coders: tuple[str, ...]  # that compete: "builtin", and models by the language they write
    islands: int = 4

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        reason = self.rules.reached(history)
        if reason is not None:
            return Stop(reason)
        begun = len(history) - len(history) % self.islands
        size = min(self.islands, self.rules.rounds - begun)
        with threads(size, "judge") as executor:
            made = [executor.submit(self._request, task, history[:begun], i) for i in range(size)]
            return [request.result() for request in made[len(history) - begun :]]

    def _request(self, task: Task, before: Sequence[Attempt], island: int) -> Request:
        number = len(before) + island
        chance = Random(f"{task.sha256} {number}")  # the same again when a run goes on
        if not before:
            models = [name for name in self.coders if name != "builtin"]
            home = "builtin" in self.coders and island == 0  # where it always has the same answer
            return Request(sample=number, coder="builtin" if home else models[island % len(models)])
        parent = self._parent(before, island, chance)
        if island == 0 and parent.candidate.author == "builtin" and chance.random() < _BUILTIN_MOVES:
            own = [attempt for attempt in before if attempt.candidate.author == "builtin"]
            advice = self.rules_judge.advise(task, own)
            if advice is not None:
                return Request(advice, number, len(before), "builtin")
        languages = [name for name in self.coders if name != "builtin"]
        language: str = parent.candidate.language
        if language not in languages or (len(languages) > 1 and chance.random() < _TRANSLATED):
            language = chance.choice([other for other in languages if other != language])
        given = [a.advice for a in before if a.advice and a.advice.about == parent.candidate.sha256]
        advice = self.judge.advise_on(task, before, parent, given)
        return Request(advice, number, len(before), language)

    def _parent(self, before: Sequence[Attempt], island: int, chance: Random) -> Attempt:
        """One of the island's archive; its last one while nothing there is correct."""
        own = list(before[island :: self.islands])
        generation = len(before) // self.islands
        if generation % _MIGRATION == 0 and self.islands > 1:
            guest = best_of(before[(island - 1) % self.islands :: self.islands])
            own += [guest] if guest is not None else []
        archive: dict[tuple[str, str], Attempt] = {}
        for attempt in sorted(own, key=lower_bound):
            if attempt.evaluation.verdict is Verdict.correct:
                bottleneck = attempt.profile.bottleneck if attempt.profile is not None else "unknown"
                archive[_written_by(attempt), bottleneck] = attempt
        if not archive:
            return own[-1]
        elites = list(archive.values())
        return max(elites, key=lower_bound) if chance.random() < _FROM_BEST else chance.choice(elites)


def _written_by(attempt: Attempt) -> str:
    candidate = attempt.candidate
    return "builtin" if candidate.author == "builtin" else candidate.language


def best_of(history: Sequence[Attempt]) -> Attempt | None:
    """The correct attempt with the highest lower bound of its speedup over eager."""
    correct = [attempt for attempt in history if attempt.evaluation.verdict is Verdict.correct]
    return max(correct, key=lower_bound, default=None)


def _needs_a_gpu(attempt: Attempt) -> bool:
    """Whether its kernels gave right answers, and there is nothing to time them on."""
    evaluation = attempt.evaluation
    if evaluation.correctness is None:  # they did not run, for one
        return False
    of_gpu = attempt.candidate.language in ("triton", "cuda")
    return evaluation.verdict is Verdict.unmeasured and of_gpu and evaluation.target.device == "cpu"


def _last_gain(history: Sequence[Attempt]) -> int:
    """The last round whose interval lies above the best median before it; 0 for none."""
    last, best = 0, 0.0
    for number, attempt in enumerate(history):
        speedup = attempt.evaluation.speedup
        if attempt.evaluation.verdict is not Verdict.correct or speedup is None or speedup.eager is None:
            continue
        if speedup.eager.low > best:
            last = number
        best = max(best, speedup.eager.median)
    return last


def lower_bound(attempt: Attempt) -> float:
    """Of its speedup over eager; 0 where that is not known."""
    speedup = attempt.evaluation.speedup
    return speedup.eager.low if speedup is not None and speedup.eager is not None else 0.0
