"""Posterior of a task's schedules: what rules and profile let expect, corrected by what was measured."""

import math
from collections.abc import Mapping, Sequence

from kernelwright.agent.builtin.schedule import name_of
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.gaussian_process import Posterior, comparable, measured, timed
from kernelwright.agent.tuner.rules import BY_KNOB
from kernelwright.kernelbench.records import Candidate
from kernelwright.kernelbench.speed_of_light import trusted_share
from kernelwright.results.lessons.lessons import Expectation

_HARDLY = 0.01  # spread of a knob without a rule
_BESIDE = 0.5  # of the spread of a knob that can fix nothing of what was found
_ALL = 0.95  # share of the speed of light from which there is no less to be gained
_OF_KERNELS = {"vector", "unroll"}  # knobs of all own kernels, and of nothing else
_CHOSEN = 0.02  # what the coder's own choice is better by than others, before anything is measured


def expected_speedups(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Return expected speedups over eager of the builtin coder's candidates, by sha256.

    All that share knobs with a candidate inform its estimate. Empty if one was timed without eager.
    """
    known = timed(attempts)
    speedups = [attempt.evaluation.speedup for attempt in known]
    if not known or any(speedup is None or speedup.eager is None for speedup in speedups):
        return {}
    speeds = posterior(attempts).speeds([attempt.candidate.schedule for attempt in known])
    return {a.candidate.sha256: math.exp(speed) for a, speed in zip(known, speeds, strict=True)}


def posterior(
    history: Sequence[Attempt],
    elsewhere: Mapping[str, Expectation] | None = None,
    best: Attempt | None = None,
) -> Posterior:
    """Return the posterior of schedules; one in `history` must be timed, or have a predicted time.

    `elsewhere`: effects of changes in other tasks, by technique. The profile of `best`, else of the first,
    gives the bottleneck and the kernels' shares of the time.
    """
    known = comparable(history)
    profiled = best if best is not None and best.profile is not None else known[0]
    chosen = known[0].candidate.schedule
    likely = {name: math.log(expectation.likely) for name, expectation in (elsewhere or {}).items()}

    def spread(knob: str) -> float:
        rule = BY_KNOB.get(name_of(knob))
        return reach(knob, rule.spread if rule is not None else _HARDLY, profiled)

    def before(schedule: Mapping[str, str]) -> float:
        gains = (
            likely.get(f"{name_of(knob)}={value}", 0.0)
            for knob, value in schedule.items()
            if chosen.get(knob) != value
        )
        return sum(gains) - _CHOSEN * (schedule != chosen)

    return Posterior(measured(known), spread, before)


def reach(knob: str, spread: float, attempt: Attempt) -> float:
    """Scale a rule's `spread` to this candidate's calls, by its profile.

    It is less where little is left to be gained to the speed of light, where the diagnosis has found what the
    knob cannot fix, and where the knob's kernel has only a part of the time (G. Amdahl, 1967).
    """
    profile = attempt.profile
    found = {finding.kind for finding in profile.findings} if profile is not None else set()
    rule = BY_KNOB.get(name_of(knob))
    if found and rule is not None and not rule.fixes & found:
        spread *= _BESIDE
    light = speed_of_light(attempt)
    if light:
        spread *= math.sqrt(math.log(1 / min(light, _ALL)))
    share = _share(knob, attempt)
    return -math.log(1 - share + share * math.exp(-spread))


def _share(knob: str, attempt: Attempt) -> float:
    """Return the share of the busy time that a knob affects; 1 if unknown."""
    profile, kernel = attempt.profile, kernel_of(knob, attempt.candidate)
    waiting = profile.value("time_waiting") if profile is not None else None
    if profile is None or waiting is None or waiting == 1.0 or not (kernel or name_of(knob) in _OF_KERNELS):
        return 1.0
    names = [kernel] if kernel else profile.kernels
    return min(1.0, sum(profile.value("time_share", name) or 0.0 for name in names) / (1 - waiting))


def kernel_of(knob: str, candidate: Candidate) -> str:
    """Return the name of the kernel of a knob; empty if it belongs to all, or is unknown."""
    number = knob.rpartition(".")[0].removeprefix("k")
    return candidate.kernels[int(number)] if number and int(number) < len(candidate.kernels) else ""


def speed_of_light(attempt: Attempt) -> float:
    """Return the share of the speed of light; 0 if unknown, or if its ceiling was measured too low."""
    return trusted_share(attempt.evaluation) or 0.0
