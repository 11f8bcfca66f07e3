"""The rules judge: reads the profile of the best candidate and proposes the next move in a schedule.

Each rule says how much one knob may do, and the profile how much of that there is to be gained. That, and
what was measured of the task's schedules so far, is what the judge believes of those that were not tried
(`posterior`); it proposes the move from which it expects most. What moves came to in tasks of the same class,
of this run or of others, is believed before any is measured.
"""

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from kernelwright.agent.builtin.schedule import legal
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.gaussian_process import Beliefs, is_reference, measured, timed
from kernelwright.kernelbench.records import Advice, Candidate, Task, Verdict
from kernelwright.profiling.records import FindingKind, Profile
from kernelwright.profiling.roofline import in_words
from kernelwright.results.lessons.lessons import Expectation

NEAR_CEILING = 0.9  # share of the speed of light from which no schedule is worth a try
_HARDLY = 0.01  # spread of a knob without a rule
_BESIDE = 0.5  # of the spread of a knob that can fix nothing of what was found
_ALL = 0.95  # share of the speed of light from which there is no less to be gained
_PLAIN = {
    "fuse": "apart",
    "attention": "apart",
    "layout": "contiguous",
    "products": "library",
    "topk": "library",
}
_OF_KERNELS = {"vector", "unroll"}  # knobs of all own kernels, and of nothing else
_OFF = {"keep", "in_place", "streaming", "parts", "online"}
WORTH_A_TRY = 1.01  # gain that a move must let hope for
_DIGITS = 6  # of gains: the last ones depend on the machine
_CHOSEN = 0.02  # what the coder's own choice is better by than others, before anything is measured


@dataclass(frozen=True)
class Rule:
    """What one knob may do. `spread`: the standard deviation of the logarithm of the speedup from one of its
    values to another, with all of the time left to be gained (see `reach`), fitted to the schedules of many
    tasks (results/published/cpu/knobs.md); an assumption where none there tells of the knob, as of those that
    only GPUs have."""

    knob: str  # its name without the kernel
    method: str
    plan: str  # with {where}, {old} and {new}
    fixes: Set[FindingKind]
    spread: float


RULES = (
    Rule(
        "layout",
        "change the layout of images",
        "Have images {new} in memory instead of {old}: convolutions need not reorder images whose channels "
        "lie last, and what comes in or goes out in the other order is copied once.",
        frozenset({"memory", "compute"}),
        0.28,
    ),
    Rule(
        "windows",
        "choose between own kernels and the library's",
        "Leave pooling and depthwise convolutions to {new} kernels instead of {old} ones: the library's may "
        "be better suited to these shapes, our own take along what comes before and after.",
        frozenset({"memory", "compute"}),
        0.69,
    ),
    Rule(
        "products",
        "choose between own kernels and the library's",
        "Leave products with few vectors, or of small matrices, to {new} kernels instead of {old} ones: our "
        "own take along what comes after, and read the matrix of few vectors once; the library's may keep "
        "more of it in registers.",
        frozenset({"memory", "compute"}),
        0.18,
    ),
    Rule(
        "topk",
        "choose between own kernels and the library's",
        "Leave the few largest elements of rows to {new} kernels instead of {old} ones: our own pass over a "
        "row once for each and take along what comes before and after, the library's sort a part of it.",
        frozenset({"memory", "compute"}),
        0.1,
    ),
    Rule(
        "attention",
        "choose between own kernels and the library's",
        "Have attention {new} instead of {old}: a kernel of our own that never has the scores in memory, "
        "torch's call, or products with a kernel between them.",
        frozenset({"memory", "compute"}),
        0.1,
    ),
    Rule(
        "streaming",
        "change how results are stored",
        "Switch non-temporal stores of {where} from {old} to {new}: streaming stores save the "
        "read-for-ownership of every line written, plain stores leave the result in the cache.",
        frozenset({"memory"}),
        0.15,
    ),
    Rule(
        "prefetch",
        "change the prefetching",
        "Turn software prefetching {new} in {where}: it fetches the next row or block while this one is "
        "computed, and costs instructions where the hardware would have done the same.",
        frozenset({"memory", "latency", "instructions"}),
        0.11,
    ),
    Rule(
        "threads",
        "change the number of threads",
        "Run {where} with threads={new} instead of {old}: a parallel region costs microseconds to open, "
        "a single thread leaves a core idle.",
        frozenset({"launch", "imbalance"}),
        0.1,
    ),
    Rule(
        "parts",
        "change what threads share",
        "Set parts={new} in {where} (was {old}): threads share the elements of columns, read in the order of "
        "memory and put together at the end, or each has columns of its own.",
        frozenset({"memory", "imbalance"}),
        0.09,
    ),
    Rule(
        "online",
        "change the passes over a row",
        "Set online={new} in {where} (was {old}): a maximum with the exponentials below it, or a mean with "
        "the squares about it, take one pass with corrections or two without.",
        frozenset({"memory", "instructions"}),
        0.08,
    ),
    Rule(
        "keep",
        "trade memory for arithmetic",
        "Set keep={new} in {where} (was {old}): a value that two passes need is either kept in a buffer on "
        "the thread's stack, or in registers, or computed again.",
        frozenset({"memory", "compute", "instructions"}),
        0.18,
    ),
    Rule(
        "vector",
        "change the vector width",
        "Compile for {new}-bit vectors instead of {old}: wide vectors halve the instructions, narrow ones "
        "keep the clock up and use two ports.",
        frozenset({"memory", "compute", "instructions"}),
        0.15,
    ),
    Rule(
        "unroll",
        "unroll the inner loops",
        "Turn loop unrolling {new}: more independent work for each core between two branches.",
        frozenset({"compute", "instructions"}),
        0.02,
    ),
    Rule(
        "block",
        "change the block size",
        "Use blocks of {new} elements in {where} instead of {old}: small blocks stay in the first-level "
        "cache, large ones have less overhead each.",
        frozenset({"memory", "compute", "instructions", "imbalance"}),
        0.18,
    ),
    Rule(
        "rows",
        "change the rows of a program",
        "Give a program of {where} {new} rows at once instead of {old}: more of them share what is started "
        "and loaded once, fewer leave registers for more programs on a multiprocessor.",
        frozenset({"memory", "compute", "latency", "launch", "imbalance"}),
        0.06,
    ),
    Rule(
        "tile",
        "change the size of tiles",
        "Give a block of {where} a tile of {new} by {new} of the product instead of {old} by {old}: large "
        "ones read each matrix less often, small ones give more multiprocessors work.",
        frozenset({"memory", "compute", "latency", "imbalance"}),
        0.1,
    ),
    Rule(
        "warps",
        "change the number of warps",
        "Run a program of {where} with {new} warps instead of {old}: fewer keep more elements in each "
        "thread, more hide the time that loads take.",
        frozenset({"memory", "compute", "latency"}),
        0.08,
    ),
    Rule(
        "in_place",
        "change where the result goes",
        "Set in_place={new} in {where} (was {old}): written over the library call's result it needs no new "
        "pages, written apart it can be streamed.",
        frozenset({"memory", "launch"}),
        0.09,
    ),
    Rule(
        "fuse",
        "change what is fused",
        "Set fuse={new} (was {old}): a reduction shares the loop of what computes its operand, or has a "
        "kernel of its own with simpler loops.",
        frozenset({"memory", "compute", "instructions", "launch"}),
        0.02,
    ),
)


_RULES = {rule.knob: rule for rule in RULES}


@dataclass(frozen=True)
class Move:
    rule: Rule
    knob: str  # with the kernel
    old: str
    new: str

    @property
    def technique(self) -> str:
        """The change, whichever kernel it is of."""
        return f"{self.rule.knob}={self.new}"


@dataclass(frozen=True)
class _Step:
    """A move on one that was tried, which has this `speed`: the logarithm of what is believed."""

    parent: Attempt
    speed: float
    move: Move

    @property
    def schedule(self) -> dict[str, str]:
        return {**self.parent.candidate.schedule, self.move.knob: self.move.new}


class Expectations(Protocol):
    """A memory of other tasks."""

    def expectations(self, task: Task, history: Sequence[Attempt]) -> Mapping[str, Expectation]:
        """By technique."""
        ...


class Ranking(Protocol):
    """Guesses, before anything is built."""

    def gains(
        self,
        task: Task,
        history: Sequence[Attempt],
        best: Mapping[str, str],
        schedules: Sequence[Mapping[str, str]],
    ) -> Sequence[float]:
        """Time before / after of going from the `best` schedule to each; empty where nothing is known."""
        ...


class RulesJudge:
    """Advice for candidates of the builtin coder. It holds no state: it knows the history, and the memory."""

    def __init__(
        self,
        rounds: int | None = None,
        memory: Expectations | None = None,
        hold: Set[str] = frozenset(),
        ranking: Ranking | None = None,
        worth_a_try: float = WORTH_A_TRY,
        near_ceiling: float = NEAR_CEILING,
    ) -> None:
        """`rounds`: candidates there may be, the last of them the reference where it is the fastest.

        `hold`: knobs that stay as they are, by their names without the kernel. `ranking`: what is believed
        before anything is measured. `worth_a_try`: the expected gain, and `near_ceiling`: the share of the
        speed of light, at which it gives up.
        """
        self._rounds = rounds
        self._hold = hold
        self._ranking = ranking
        self._worth_a_try, self._near_ceiling = worth_a_try, near_ceiling
        self._memory = memory

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        """The untried move on a candidate that most is expected of; None when none is worth a try."""
        known = timed(history)
        if not known:
            return _retreat(history, self._hold)
        best = known[posterior(task, history, self._memory, self._ranking).best]
        believed = posterior(task, history, self._memory, self._ranking, best)
        [speed] = believed.speeds([best.candidate.schedule])
        instead = fallback_advice(best, history) if speed < 0 else None
        if instead is not None and self._rounds is not None and len(history) + 1 >= self._rounds:
            return instead
        if _light(best) > self._near_ceiling or _reference_is_ahead(known, speed, history):
            return None
        steps = self._steps(believed, known, history)
        guesses = believed.guesses(best.candidate.schedule, [step.schedule for step in steps])
        hoped, step, guess = max(
            ((round(guess.hoped, _DIGITS), step, guess) for guess, step in zip(guesses, steps, strict=True)),
            key=lambda found: found[0],  # the first of equals
            default=(0.0, None, None),
        )
        if step is None or guess is None or hoped < self._worth_a_try:
            return instead
        gain = guess.expected * math.exp(speed - step.speed)
        light = _light(step.parent)
        return Advice(
            bottleneck=_in_words(step.parent.profile),
            method=step.move.rule.method,
            plan=_plan(step.move, step.parent.candidate),
            technique=step.move.technique,
            evidence=_evidence(step.parent),
            predicted_gain=round(min(gain, 1 / light) if light else gain, _DIGITS),
            schedule={step.move.knob: step.move.new},
            about=step.parent.candidate.sha256,
        )

    def _steps(self, believed: Beliefs, known: Sequence[Attempt], history: Sequence[Attempt]) -> list[_Step]:
        """To each schedule that was not tried and is one move from one that was: from the fastest such.

        From the best alone a search would end where no single move helps.
        """
        tried = [dict(a.candidate.schedule) for a in history if not is_reference(a)]
        speeds = believed.speeds([attempt.candidate.schedule for attempt in known])
        steps: dict[frozenset[tuple[str, str]], _Step] = {}
        for speed, parent in sorted(zip(speeds, known, strict=True), key=lambda found: -found[0]):
            for move in untried(parent.candidate, tried):
                if move.rule.knob not in self._hold:
                    step = _Step(parent, speed, move)
                    steps.setdefault(frozenset(step.schedule.items()), step)
        return list(steps.values())


def posterior(
    task: Task,
    history: Sequence[Attempt],
    memory: Expectations | None = None,
    ranking: Ranking | None = None,
    best: Attempt | None = None,
) -> Beliefs:
    """Of schedules, where one in `history` was timed. The profile of `best`, else the first's, tells what
    binds, and which kernels the time goes to."""
    first = timed(history)[0]
    profiled = best if best is not None and best.profile is not None else first
    known = memory.expectations(task, history) if memory is not None else {}

    likely = {name: math.log(expectation.likely) for name, expectation in known.items()}
    chosen = first.candidate.schedule

    def spread(knob: str, value: str) -> float:
        rule = _RULES.get(_name(knob))
        return reach(knob, rule.spread if rule is not None else _HARDLY, profiled)

    def before(schedules: Sequence[Mapping[str, str]]) -> Sequence[float]:
        if ranking is not None:
            ranked = ranking.gains(task, history, chosen, schedules)
            if ranked:
                return [math.log(gain) for gain in ranked]
        return [
            sum(
                likely.get(f"{_name(knob)}={value}", 0.0)
                for knob, value in schedule.items()
                if chosen.get(knob) != value
            )
            - _CHOSEN * (schedule != chosen)
            for schedule in schedules
        ]

    return Beliefs(measured(timed(history)), spread, before)


def reach(knob: str, spread: float, attempt: Attempt) -> float:
    """What a rule's `spread` comes to in this candidate's calls, by its profile.

    It is less where little is left to be gained to the speed of light, where the diagnosis has found what the
    knob cannot fix, and where the knob's kernel has only a part of the time (G. Amdahl, 1967).
    """
    profile = attempt.profile
    found = {finding.kind for finding in profile.findings} if profile is not None else set()
    rule = _RULES.get(_name(knob))
    if found and rule is not None and not rule.fixes & found:
        spread *= _BESIDE
    light = _light(attempt)
    if light:
        spread *= math.sqrt(math.log(1 / min(light, _ALL)))
    share = _share(knob, attempt)
    return -math.log(1 - share + share * math.exp(-spread))


def _name(knob: str) -> str:
    """Without the kernel."""
    return knob.rpartition(".")[2]


def _share(knob: str, attempt: Attempt) -> float:
    """Of the time in which something is done, what a knob bears upon; 1 where that is not known."""
    profile, kernel = attempt.profile, _kernel(knob, attempt.candidate)
    waiting = profile.value("time_waiting") if profile is not None else None
    if profile is None or waiting is None or waiting == 1.0 or not (kernel or _name(knob) in _OF_KERNELS):
        return 1.0
    names = [kernel] if kernel else profile.kernels
    return min(1.0, sum(profile.value("time_share", name) or 0.0 for name in names) / (1 - waiting))


def _kernel(knob: str, candidate: Candidate) -> str:
    """The name of the kernel that a knob is of; empty where it is of all, or unknown."""
    number = knob.rpartition(".")[0].removeprefix("k")
    return candidate.kernels[int(number)] if number and int(number) < len(candidate.kernels) else ""


def untried(candidate: Candidate, tried: Sequence[Mapping[str, str]]) -> list[Move]:
    """The steps of one knob on a candidate's schedule that lead to none of those that were tried."""
    schedule = candidate.schedule
    return [m for m in _moves(candidate) if not _was_tried({**schedule, m.knob: m.new}, tried)]


def _moves(candidate: Candidate) -> Iterator[Move]:
    for knob, old in candidate.schedule.items():
        rule = _RULES.get(_name(knob))
        if rule is not None:
            values = candidate.alternatives.get(knob, legal(knob))
            yield from (Move(rule, knob, old, new) for new in values if new != old)


def _was_tried(schedule: Mapping[str, str], tried: Sequence[Mapping[str, str]]) -> bool:
    """A move that was tried may have left knobs out of the schedule, or brought in others."""
    return any(all(schedule.get(k, v) == v for k, v in t.items()) for t in tried)


def _reference_is_ahead(known: Sequence[Attempt], speed: float, history: Sequence[Attempt]) -> bool:
    """Whether the reference was tried as it is, and was faster than the best is believed to be.

    `speed`: the logarithm of the best one's.
    """
    tried = [a for a in history if is_reference(a) and a.evaluation.verdict is Verdict.correct]
    return any(measured([*known, other])[-1].speed > speed for other in tried)


def fallback_advice(best: Attempt, history: Sequence[Attempt]) -> Advice | None:
    """Where the reference is faster than the best for certain, and was not tried, it should be submitted."""
    speedup = best.evaluation.speedup
    if speedup is None or speedup.eager is None or speedup.eager.high >= 1:
        return None
    if any(is_reference(attempt) for attempt in history):
        return None
    return Advice(
        bottleneck="the kernels are slower than what they replace",
        method="leave everything to torch",
        plan="Submit the reference as it is.",
        evidence={"speedup": speedup.eager.median},
        predicted_gain=1 / speedup.eager.median,
        schedule={"kernels": "none"},
    )


def _retreat(history: Sequence[Attempt], hold: Set[str]) -> Advice | None:
    """With no correct candidate, the plainest schedule is worth one try."""
    if not history or not history[-1].candidate.schedule:
        return None
    schedule = history[-1].candidate.schedule
    plain = {
        **{k: v for k, v in _PLAIN.items() if k in schedule and k not in hold},
        **{k: "off" for k in schedule if k.rpartition(".")[2] in _OFF - hold and "." in k},
    }
    if all(schedule.get(k) == v for k, v in plain.items()):
        return None
    return Advice(
        bottleneck="no candidate is correct yet",
        method="retreat to the plainest schedule",
        plan="Keep reductions apart from what feeds them, leave products to the library; no buffers, "
        "in-place results, streaming stores, shared columns or joined passes.",
        evidence={},
        predicted_gain=1.0,
        schedule={k: v for k, v in plain.items() if schedule.get(k) != v},
    )


def _light(attempt: Attempt) -> float:
    """The share of the speed of light; 0 where it is not known."""
    return (attempt.profile.speed_of_light if attempt.profile is not None else None) or 0.0


def _in_words(profile: Profile | None) -> str:
    if profile is None:
        return "unknown"
    said = profile.findings[0].says if profile.findings else "Nothing stands out."
    light = in_words(profile)
    return f"{said} That is {light}." if light else said


def _plan(move: Move, candidate: Candidate) -> str:
    number = move.knob.rpartition(".")[0][1:]
    where = _kernel(move.knob, candidate) or f"kernel {number}" if number else "all kernels"
    return move.rule.plan.format(where=where, old=move.old, new=move.new)


def _evidence(best: Attempt) -> dict[str, float]:
    timing = best.evaluation.timing
    found = {"candidate_us": timing.candidate_us.median} if timing is not None else {}
    if best.profile is not None:
        found |= {m.name: m.value for m in best.profile.metrics if m.unit == "1" and not m.kernel}
        for finding in best.profile.findings:
            found |= finding.cites
        if best.profile.speed_of_light is not None:
            found["speed_of_light"] = best.profile.speed_of_light
    return found
