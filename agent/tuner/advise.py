"""The rules judge: reads the profile of the best candidate and proposes the next move in a schedule.

Each rule says how much one knob may do, and the profile how much of that there is to be gained. From that and
what was measured of the task's schedules so far follows the posterior of those that were not tried; the judge
proposes the move with the highest expected improvement. Before any is measured, gains of moves in tasks of
the same class count, of this run or of others. Where no device can time GPU kernels, the cost model's
predictions rank them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from kernelwright.agent.builtin.schedule import legal, name_of
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.gaussian_process import Posterior, comparable, is_reference, measured
from kernelwright.agent.tuner.posterior import kernel_of, posterior, speed_of_light
from kernelwright.agent.tuner.rules import BY_KNOB, Rule
from kernelwright.kernelbench.records import Advice, Candidate, Task, Verdict
from kernelwright.profiling.records import Profile
from kernelwright.profiling.roofline import in_words
from kernelwright.results.lessons.lessons import Expectation

_PLAIN = {
    "fuse": "apart",
    "attention": "apart",
    "layout": "contiguous",
    "products": "library",
    "gemm": "library",
    "topk": "library",
    "blocks": "off",
    "split": "off",
}
_OFF = {"keep", "in_place", "streaming", "parts", "online"}
_DIGITS = 6  # of gains: the last ones depend on the machine


@dataclass(frozen=True)
class Move:
    rule: Rule
    knob: str  # with the kernel
    old: str
    new: str

    @property
    def technique(self) -> str:
        """The change, without the kernel that it is of."""
        return f"{self.rule.knob}={self.new}"


@dataclass(frozen=True)
class _Step:
    """A move on the schedule of `parent`, whose expected `speed` is the logarithm of its speedup."""

    parent: Attempt
    speed: float
    move: Move

    @property
    def schedule(self) -> dict[str, str]:
        return {**self.parent.candidate.schedule, self.move.knob: self.move.new}


class Expectations(Protocol):
    """Memory of other tasks."""

    def expectations(self, task: Task, history: Sequence[Attempt]) -> Mapping[str, Expectation]:
        """Return the measured effects of changes in tasks of the same class, by technique."""
        ...


@dataclass(frozen=True)
class RulesJudge:
    """Advice for candidates of the builtin coder. It holds no state: it knows the history, and the memory."""

    rounds: int | None = None  # of a task; the last of them is the reference if that is the fastest
    memory: Expectations | None = None
    hold: Set[str] = frozenset()  # knobs that stay as they are, by their names without the kernel
    worth_a_try: float = 1.01  # gain that a move must let hope for
    near_ceiling: float = 0.9  # share of the speed of light from which no schedule is worth a try

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        """Return the untried move with the highest expected gain; None if none is worth a try."""
        known = comparable(history)
        if not known:
            return _retreat(history, self.hold)
        elsewhere = self.memory.expectations(task, history) if self.memory is not None else {}
        best = known[posterior(history, elsewhere).best]
        model = posterior(history, elsewhere, best)
        [speed] = model.speeds([best.candidate.schedule])
        fallback = fallback_advice(best, history) if speed < 0 else None
        if fallback is not None and self.rounds is not None and len(history) + 1 >= self.rounds:
            return fallback
        if speed_of_light(best) > self.near_ceiling or _reference_is_ahead(known, speed, history):
            return None
        steps = self._steps(model, known, history)
        guesses = model.guesses(best.candidate.schedule, [step.schedule for step in steps])
        hopes = [round(guess.hoped, _DIGITS) for guess in guesses]
        if not steps or max(hopes) < self.worth_a_try:
            return fallback
        highest = hopes.index(max(hopes))
        step, guess = steps[highest], guesses[highest]
        gain = guess.expected * math.exp(speed - step.speed)
        light = speed_of_light(step.parent)
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

    def _steps(self, model: Posterior, known: Sequence[Attempt], history: Sequence[Attempt]) -> list[_Step]:
        """Return a step to each untried schedule one move from a tried one, from the fastest such.

        From the best alone a search would end where no single move helps.
        """
        tried = [a.candidate.schedule for a in history if not is_reference(a)]
        speeds = model.speeds([attempt.candidate.schedule for attempt in known])
        steps: dict[frozenset[tuple[str, str]], _Step] = {}
        for speed, parent in sorted(zip(speeds, known, strict=True), key=lambda found: -found[0]):
            for move in untried(parent.candidate, tried):
                if move.rule.knob not in self.hold:
                    step = _Step(parent, speed, move)
                    steps.setdefault(frozenset(step.schedule.items()), step)
        return list(steps.values())


def untried(candidate: Candidate, tried: Sequence[Mapping[str, str]]) -> list[Move]:
    """Return the steps of one knob on a candidate's schedule that lead to no tried schedule."""
    schedule = candidate.schedule
    return [m for m in _moves(candidate) if not _was_tried({**schedule, m.knob: m.new}, tried)]


def _moves(candidate: Candidate) -> Iterator[Move]:
    for knob, old in candidate.schedule.items():
        rule = BY_KNOB.get(name_of(knob))
        if rule is not None:
            values = candidate.alternatives.get(knob, legal(knob))
            yield from (Move(rule, knob, old, new) for new in values if new != old)


def _was_tried(schedule: Mapping[str, str], tried: Sequence[Mapping[str, str]]) -> bool:
    """Return True if a tried schedule agrees in all common knobs: a move may remove or add knobs."""
    return any(all(schedule.get(k, v) == v for k, v in t.items()) for t in tried)


def _reference_is_ahead(known: Sequence[Attempt], speed: float, history: Sequence[Attempt]) -> bool:
    """Return True if the reference was tried as it is, and was faster than the best is expected to be.

    `speed`: the logarithm of the best schedule's speedup.
    """
    tried = [a for a in history if is_reference(a) and a.evaluation.verdict is Verdict.correct]
    return any(measured([*known, other])[-1].speed > speed for other in tried)


def fallback_advice(best: Attempt, history: Sequence[Attempt]) -> Advice | None:
    """Advise the reference if it is certainly faster than the best and was not tried."""
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
    """Advise the plainest schedule once if no candidate is correct."""
    if not history or not history[-1].candidate.schedule:
        return None
    schedule = history[-1].candidate.schedule
    plain = {
        **{k: v for k, v in _PLAIN.items() if k in schedule and k not in hold},
        **{k: "off" for k in schedule if name_of(k) in _OFF - hold and "." in k},
    }
    if all(schedule.get(k) == v for k, v in plain.items()):
        return None
    return Advice(
        bottleneck="no candidate is correct yet",
        method="retreat to the plainest schedule",
        plan="Keep reductions whole and apart from what feeds them, leave products to the library; no "
        "buffers, in-place results, streaming stores, shared columns or joined passes.",
        evidence={},
        predicted_gain=1.0,
        schedule={k: v for k, v in plain.items() if schedule.get(k) != v},
    )


def _in_words(profile: Profile | None) -> str:
    if profile is None:
        return "unknown"
    said = profile.findings[0].says if profile.findings else "Nothing stands out."
    light = in_words(profile)
    return f"{said} That is {light}." if light else said


def _plan(move: Move, candidate: Candidate) -> str:
    number = move.knob.rpartition(".")[0][1:]
    where = kernel_of(move.knob, candidate) or f"kernel {number}" if number else "all kernels"
    return move.rule.plan.format(where=where, old=move.old, new=move.new)


def _evidence(best: Attempt) -> dict[str, float]:
    timing = best.evaluation.timing
    found = {"candidate_us": timing.candidate_us.median} if timing is not None else {}
    if (predicted_us := best.evaluation.predicted_us) is not None:
        found["predicted_us"] = predicted_us
    if best.profile is not None:
        found |= {m.name: m.value for m in best.profile.metrics if m.unit == "1" and not m.kernel}
        for finding in best.profile.findings:
            found |= finding.cites
        if best.profile.speed_of_light is not None:
            found["speed_of_light"] = best.profile.speed_of_light
    return found
