"""The rules judge: reads the profile of the best candidate and proposes the next move in its schedule.

Each rule is a hypothesis about one bottleneck with the gain it would bring. The moves of the rules are tried
in order of that gain, each once, on top of the best schedule so far; the history says what was tried. What
moves came to in tasks of the same class, of this run or of others, is weighed against what rules hope for.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from agent.builtin.schedule import legal
from agent.protocols import Attempt
from kernelbench.records import Advice, Task, Verdict
from profiling.records import Bottleneck, Profile
from results.lessons import Expectation

NEAR_CEILING = 0.9  # share of the speed of light from which no schedule is worth a try
_PLAIN = {
    "fuse": "apart",
    "attention": "apart",
    "layout": "contiguous",
    "products": "library",
    "topk": "library",
}
_OFF = {"keep", "in_place", "streaming", "parts", "online"}
PATIENCE = 6  # moves in a row without a gain after which the judge gives up
NOTICEABLE = 1.01  # a gain below this is noise


@dataclass(frozen=True)
class Rule:
    """What one knob can mend. `gains` is the predicted time before / after for each bottleneck."""

    knob: str  # its name without the kernel
    method: str
    plan: str  # with {where}, {old} and {new}
    gains: Mapping[Bottleneck, float]


# Gains are hopes, which order the moves. What moves came to where many were tried was less (docs/LOG.md).
RULES = (
    Rule(
        "layout",
        "change the layout of images",
        "Have images {new} in memory instead of {old}: convolutions need not reorder images whose channels "
        "lie last, and what comes in or goes out in the other order is copied once.",
        {"compute": 1.15, "memory": 1.15, "overhead": 1.02, "unknown": 1.15},
    ),
    Rule(
        "windows",
        "choose between own kernels and the library's",
        "Leave pooling and depthwise convolutions to {new} kernels instead of {old} ones: the library's may "
        "be better suited to these shapes, our own take along what comes before and after.",
        {"compute": 1.03, "memory": 1.02, "overhead": 1.01, "unknown": 1.02},
    ),
    Rule(
        "products",
        "choose between own kernels and the library's",
        "Leave products with few vectors to {new} kernels instead of {old} ones: our own read the matrix "
        "once and take along what comes before and after, the library's may keep more of it in registers.",
        {"memory": 1.05, "compute": 1.10, "overhead": 1.02, "unknown": 1.05},
    ),
    Rule(
        "topk",
        "choose between own kernels and the library's",
        "Leave the few largest elements of rows to {new} kernels instead of {old} ones: our own pass over a "
        "row once for each and take along what comes before and after, the library's sort a part of it.",
        {"compute": 1.05, "memory": 1.05, "overhead": 1.02, "unknown": 1.05},
    ),
    Rule(
        "attention",
        "choose between own kernels and the library's",
        "Have attention {new} instead of {old}: a kernel of our own that never has the scores in memory, "
        "torch's call, or products with a kernel between them.",
        {"compute": 1.05, "memory": 1.05, "overhead": 1.02, "unknown": 1.05},
    ),
    Rule(
        "streaming",
        "change how results are stored",
        "Switch non-temporal stores of {where} from {old} to {new}: streaming stores save the "
        "read-for-ownership of every line written, plain stores leave the result in the cache.",
        {"memory": 1.06, "compute": 1.02, "overhead": 1.01, "unknown": 1.04},
    ),
    Rule(
        "prefetch",
        "change the prefetching",
        "Turn software prefetching {new} in {where}: it fetches the next row or block while this one is "
        "computed, and costs instructions where the hardware would have done the same.",
        {"memory": 1.02, "compute": 1.02, "overhead": 1.01, "unknown": 1.02},
    ),
    Rule(
        "threads",
        "change the number of threads",
        "Run {where} with threads={new} instead of {old}: a parallel region costs microseconds to open, "
        "a single thread leaves a core idle.",
        {"overhead": 1.40, "memory": 1.04, "compute": 1.04, "unknown": 1.05},
    ),
    Rule(
        "parts",
        "change what threads share",
        "Set parts={new} in {where} (was {old}): threads share the elements of columns, read in the order of "
        "memory and put together at the end, or each has columns of its own.",
        {"memory": 1.06, "compute": 1.03, "overhead": 1.02, "unknown": 1.04},
    ),
    Rule(
        "online",
        "change the passes over a row",
        "Set online={new} in {where} (was {old}): a maximum with the exponentials below it, or a mean with "
        "the squares about it, take one pass with corrections or two without.",
        {"memory": 1.06, "compute": 1.01, "overhead": 1.01, "unknown": 1.03},
    ),
    Rule(
        "keep",
        "trade memory for arithmetic",
        "Set keep={new} in {where} (was {old}): a value that two passes need is either kept in a buffer on "
        "the thread's stack, or in registers, or computed again.",
        {"compute": 1.08, "memory": 1.04, "overhead": 1.01, "unknown": 1.04},
    ),
    Rule(
        "vector",
        "change the vector width",
        "Compile for {new}-bit vectors instead of {old}: wide vectors halve the instructions, narrow ones "
        "keep the clock up and use two ports.",
        {"compute": 1.03, "memory": 1.02, "overhead": 1.01, "unknown": 1.02},
    ),
    Rule(
        "unroll",
        "unroll the inner loops",
        "Turn loop unrolling {new}: more independent work for each core between two branches.",
        {"compute": 1.02, "memory": 1.01, "overhead": 1.01, "unknown": 1.01},
    ),
    Rule(
        "block",
        "change the block size",
        "Use blocks of {new} elements in {where} instead of {old}: small blocks stay in the first-level "
        "cache, large ones have less overhead each.",
        {"memory": 1.05, "compute": 1.04, "overhead": 1.05, "unknown": 1.04},
    ),
    Rule(
        "rows",
        "change the rows of a program",
        "Give a program of {where} {new} rows at once instead of {old}: more of them share what is started "
        "and loaded once, fewer leave registers for more programs on a multiprocessor.",
        {"memory": 1.06, "compute": 1.06, "overhead": 1.04, "unknown": 1.05},
    ),
    Rule(
        "warps",
        "change the number of warps",
        "Run a program of {where} with {new} warps instead of {old}: fewer keep more elements in each "
        "thread, more hide the time that loads take.",
        {"memory": 1.08, "compute": 1.06, "overhead": 1.02, "unknown": 1.06},
    ),
    Rule(
        "in_place",
        "change where the result goes",
        "Set in_place={new} in {where} (was {old}): written over the library call's result it needs no new "
        "pages, written apart it can be streamed.",
        {"memory": 1.05, "compute": 1.01, "overhead": 1.03, "unknown": 1.03},
    ),
    Rule(
        "fuse",
        "change what is fused",
        "Set fuse={new} (was {old}): a reduction shares the loop of what computes its operand, or has a "
        "kernel of its own with simpler loops.",
        {"memory": 1.01, "compute": 1.03, "overhead": 1.01, "unknown": 1.02},
    ),
)


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

    def gain(self, bottleneck: Bottleneck, known: Mapping[str, Expectation]) -> float:
        """Time before / after that is expected, by the rule and by what is `known` of tasks like this one."""
        hoped = self.rule.gains[bottleneck]
        return known[self.technique].blended(hoped) if self.technique in known else hoped


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
        patience: int = PATIENCE,
    ) -> None:
        """`rounds`: candidates there may be, the last of them the reference where it is the fastest.

        `hold`: knobs that stay as they are, by their names without the kernel. `ranking`: goes before what
        rules hope for. `patience`: moves in a row without a gain after which it gives up.
        """
        self._rounds = rounds
        self._hold = hold
        self._ranking = ranking
        self._patience = patience
        self._memory = memory

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        """The untried move with the largest predicted gain on the best candidate; None when none is left."""
        best = _best(history)
        if best is None:
            return _retreat(history, self._hold)
        if self._rounds is not None and len(history) + 1 >= self._rounds:
            advice = as_it_is(best, history)
            if advice is not None:
                return advice
        light = best.profile.speed_of_light if best.profile else None
        bottleneck = binding(best.profile)
        if light is not None and light > NEAR_CEILING:
            return None
        if stuck(history, self._patience):
            return as_it_is(best, history)
        tried = [dict(a.candidate.schedule) for a in history if not _is_reference(a)]
        schedule = best.candidate.schedule
        moves = self._untried(schedule, tried)
        if not moves:
            return as_it_is(best, history)
        known = self._memory.expectations(task, history) if self._memory is not None else {}
        gains = [move.gain(bottleneck, known) for move in moves]
        if self._ranking is not None:
            far = self._untried(schedule, tried, far=True)
            ranked = self._ranking.gains(
                task, history, schedule, [{**schedule, move.knob: move.new} for move in far]
            )
            moves, gains = (far, list(ranked)) if ranked else (moves, gains)
        gain, move = max(zip(gains, moves, strict=True), key=lambda pair: pair[0])  # the first of equals
        return Advice(
            bottleneck=_in_words(bottleneck, light),
            method=move.rule.method,
            plan=_plan(move),
            technique=move.technique,
            evidence=_evidence(best),
            predicted_gain=min(gain, 1 / light) if light else gain,
            schedule={move.knob: move.new},
        )

    def _untried(
        self, schedule: Mapping[str, str], tried: Sequence[Mapping[str, str]], far: bool = False
    ) -> list[Move]:
        return [move for move in untried(schedule, tried, far) if move.rule.knob not in self._hold]


def binding(profile: Profile | None) -> Bottleneck:
    """What moves should mend."""
    return profile.bottleneck if profile is not None else "unknown"


def untried(schedule: Mapping[str, str], tried: Sequence[Mapping[str, str]], far: bool = False) -> list[Move]:
    """The moves on a schedule that lead to none of those that were tried."""
    return [m for m in _moves(schedule, far) if not _was_tried({**schedule, m.knob: m.new}, tried)]


def _moves(schedule: Mapping[str, str], far: bool) -> Iterator[Move]:
    """Every step of one knob; unless `far`, ordered values only step to their neighbours' neighbours."""
    for knob, old in schedule.items():
        name = knob.rpartition(".")[2]
        rule = next((r for r in RULES if r.knob == name), None)
        if rule is None:
            continue
        values = legal(knob)
        if name in ("block", "rows", "warps") and not far:
            at = values.index(old)
            near = [values[i] for i in (at - 2, at + 2, at - 1, at + 1) if 0 <= i < len(values)]
        else:
            near = [value for value in values if value != old]
        for new in near:
            yield Move(rule, knob, old, new)


def _was_tried(schedule: Mapping[str, str], tried: Sequence[Mapping[str, str]]) -> bool:
    """A move that was tried may have left knobs out of the schedule, or brought in others."""
    return any(all(schedule.get(k, v) == v for k, v in t.items()) for t in tried)


def _best(history: Sequence[Attempt]) -> Attempt | None:
    timed = [
        a for a in history if a.evaluation.verdict is Verdict.correct and a.evaluation.timing is not None
    ]
    timed = [a for a in timed if a.candidate.schedule]
    return min(timed, key=_time_us, default=None)


def _time_us(attempt: Attempt) -> float:
    assert attempt.evaluation.timing is not None
    return attempt.evaluation.timing.candidate_us.median


def stuck(history: Sequence[Attempt], patience: int) -> bool:
    """Whether the last moves have brought nothing."""
    before = _best(history[:-patience])
    after = _best(history)
    if before is None or after is None:
        return False
    return _time_us(before) < NOTICEABLE * _time_us(after)


def _is_reference(attempt: Attempt) -> bool:
    return attempt.candidate.schedule.get("kernels") == "none"


def as_it_is(best: Attempt, history: Sequence[Attempt]) -> Advice | None:
    """Where the reference is faster than the best for certain, and was not tried, it should be handed in."""
    speedup = best.evaluation.speedup
    if speedup is None or speedup.eager is None or speedup.eager.high >= 1:
        return None
    if any(_is_reference(attempt) for attempt in history):
        return None
    return Advice(
        bottleneck="the kernels are slower than what they replace",
        method="leave everything to torch",
        plan="Hand in the reference as it is.",
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


def _in_words(bottleneck: Bottleneck, light: float | None) -> str:
    words = {
        "memory": "memory traffic",
        "compute": "arithmetic",
        "overhead": "the cost of starting work",
        "unknown": "unknown",
    }[bottleneck]
    return words if light is None else f"{words}, at {light:.0%} of the speed of light"


def _plan(move: Move) -> str:
    kernel = move.knob.rpartition(".")[0]
    where = f"kernel {kernel[1:]}" if kernel else "all kernels"
    return move.rule.plan.format(where=where, old=move.old, new=move.new)


def _evidence(best: Attempt) -> dict[str, float]:
    found = {"candidate_us": _time_us(best)}
    if best.profile is not None:
        found |= {m.name: m.value for m in best.profile.metrics if m.unit == "1" or m.name.endswith("_floor")}
        if best.profile.speed_of_light is not None:
            found["speed_of_light"] = best.profile.speed_of_light
    return found
