"""Gaussian process over knobs: what timed schedules say of all others that share knobs with them.

Searches measure briefly, so the time of one candidate may be a fifth off, while knobs change it by a tenth.
But every candidate tells of all that share knobs with it. So the logarithm of a speedup over eager is taken
for a sum of a level, of what each knob's value does, and of what only this schedule does (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, chapters 2 and 4), and a measurement for that with
noise as wide as its interval. What to try next follows from the expected improvement (D. Jones, M. Schonlau,
W. Welch, 1998).

Four schedules of one kernel were timed, each to 8%, in which two knobs vary that may do 10% each:

>>> def schedule(block, prefetch):
...     return {"k0.block": block, "k0.prefetch": prefetch}
>>> speedups = {("256", "off"): 1.50, ("512", "off"): 1.62, ("1024", "off"): 1.58, ("256", "on"): 1.75}
>>> tried = [TimedSchedule(schedule(*values), math.log(x), 0.08) for values, x in speedups.items()]
>>> model = Posterior(tried, spread=lambda knob: 0.1)
>>> [round(math.exp(speed), 2) for speed in model.speeds([each.schedule for each in tried])]
[1.57, 1.6, 1.59, 1.69]

All of them move towards each other, as each measurement is noisy, and 1.75 most. (512, on) was not tried;
both its values did well. It is expected to be as fast as the best, and trying it to gain 3%, as a loss is not
kept:

>>> best = tried[model.best].schedule
>>> [guess] = model.guesses(best, [schedule("512", "on")])
>>> round(guess.expected, 2), round(guess.hoped, 2)
(1.0, 1.03)
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernelwright.agent.builtin.schedule import legal, name_of
from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.chips.cost_model import STATED_ERROR
from kernelwright.kernelbench.records import Verdict

# Standard deviations of logarithms of speedups, chosen by hand beside what measuring 720 schedules twice
# showed: a single measurement is off by 0.16 to 0.3 (docs/LOG.md, 2026-11-23, "Searches among noise").
_LEVEL = 0.5  # between tasks, of all schedules together
_OWN = 0.03  # between schedules, of what knobs do only together
_NOISE, _LEAST_NOISE = 1.3, 0.02  # of a measurement, over half its interval; the least of all
_NO_IDEA = 1.0  # of a measurement whose interval begins at zero
# The rest is chosen by hand.
_SCALES = (1.0, 2.0, 4.0)  # factors by which a task's knobs may do more than the rules know
_DOUBT = 6.0  # weight of log(scale) against twice the log likelihood: larger scales must be far likelier
_ORDERED = ("block", "rows", "tile", "across", "group", "warps")  # knobs whose neighbouring values are alike
_REACH = 2.0  # steps between values of these at which their correlation falls to 1/e
Schedule = Mapping[str, str]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TimedSchedule:
    """A schedule that was timed, or whose time is predicted where none is.

    `speed`: the logarithm of its speedup; `noise`: its standard deviation.
    """

    schedule: Schedule
    speed: float
    noise: float


def timed(history: Sequence[Attempt]) -> list[Attempt]:
    """Return the correct candidates of the builtin coder with kernels of its own, each once."""
    return _once(
        each
        for each in history
        if each.evaluation.verdict is Verdict.correct and each.evaluation.timing is not None
    )


def comparable(history: Sequence[Attempt]) -> list[Attempt]:
    """Return those of `timed`; where no device times them, those whose times are predicted."""
    return timed(history) or _once(each for each in history if each.evaluation.predicted_us is not None)


def _once(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return those of the builtin coder that have kernels of their own, each candidate once."""
    found: dict[str, Attempt] = {}
    for attempt in attempts:
        if attempt.candidate.schedule and not is_reference(attempt) and _known(attempt):
            found.setdefault(attempt.candidate.sha256, attempt)
    return list(found.values())


def _known(attempt: Attempt) -> bool:
    """Return True if the schedule is valid in this version."""
    return all(value in legal(knob) for knob, value in attempt.candidate.schedule.items())


def measured(attempts: Sequence[Attempt]) -> list[TimedSchedule]:
    """Measure attempts against eager, timed side by side: the machine may have slowed down in between.

    Intervals of a few rounds are too narrow by a factor of two to three (docs/LOG.md). What was not timed has
    its predicted time, to within the stated error.
    """
    guessed = [attempt.evaluation.predicted_us for attempt in attempts]
    if any(guessed):
        return [
            TimedSchedule(attempt.candidate.schedule, -math.log(time_us), math.log(STATED_ERROR) / 2)
            for attempt, time_us in zip(attempts, guessed, strict=True)
            if time_us is not None
        ]
    speedups = [attempt.evaluation.speedup for attempt in attempts]
    eager = [speedup.eager for speedup in speedups if speedup is not None and speedup.eager is not None]
    times = [attempt.evaluation.timing for attempt in attempts]
    sign, found = (1, eager) if len(eager) == len(attempts) else (-1, [t.candidate_us for t in times if t])
    widths = [math.log(each.high / each.low) / 2 if each.low > 0 else None for each in found]
    usual = statistics.median([width**2 for width in widths if width is not None] or [_NO_IDEA])
    return [
        TimedSchedule(attempt.candidate.schedule, sign * math.log(interval.median), _noise(width, usual))
        for attempt, interval, width in zip(attempts, found, widths, strict=True)
    ]


def _noise(width: float | None, usual: float) -> float:
    """Return the standard deviation of a measurement with half an interval of this `width`.

    `width`: None if the interval begins at zero. `usual`: the median square of the task's widths, as a single
    one may be narrow by accident.
    """
    return _NO_IDEA if width is None else max(_NOISE * math.sqrt((width**2 + usual) / 2), _LEAST_NOISE)


def is_reference(attempt: Attempt) -> bool:
    return attempt.candidate.schedule.get("kernels") == "none"


@dataclass(frozen=True)
class Guess:
    """Time before / after of going from one schedule to another."""

    expected: float
    hoped: float  # where what is slower is not kept


@dataclass(frozen=True)
class Posterior:
    """Distribution of the speeds of all schedules, given those that were measured.

    `spread`: by knob, the standard deviation of the logarithm of what a change to it does. `before`: the
    speed of a schedule that is expected before any is measured, but for a level that all share.
    """

    measured: Sequence[TimedSchedule]
    spread: Callable[[str], float]
    before: Callable[[Schedule], float] = lambda schedule: 0.0

    @cached_property
    def best(self) -> int:
        """Index of the measured schedule with the highest expected speed, the first of equals."""
        return int(np.argmax(self.speeds(self._schedules)))

    def speeds(self, schedules: Sequence[Schedule]) -> list[float]:
        """Return the expected logarithms of the speedups."""
        means, _ = self._of(schedules)
        return means.tolist()

    def guesses(self, best: Schedule, schedules: Sequence[Schedule]) -> list[Guess]:
        """Return the guesses for going from the best to each schedule."""
        means, covariance = self._of([best, *schedules])
        variances = np.diag(covariance)
        gains = means[1:] - means[0]
        deviations = np.sqrt(np.maximum(variances[1:] + variances[0] - 2 * covariance[0, 1:], 0.0))
        return [
            Guess(math.exp(gain), math.exp(_improvement(gain, deviation)))
            for gain, deviation in zip(gains.tolist(), deviations.tolist(), strict=True)
        ]

    def misfit(self, scale: float = 1.0) -> float:
        """Return twice the negative log likelihood of the measurements, but for a constant.

        `scale`: factor of all spreads.
        """
        whole = self._noisy_covariance(scale)
        return float(self._left @ np.linalg.solve(whole, self._left) + np.linalg.slogdet(whole)[1])

    def _of(self, schedules: Sequence[Schedule]) -> tuple[Floats, Floats]:
        """Return the posterior means and covariances, given all measurements."""
        across = self._covariance(schedules, self._schedules, self._scale)
        solved = np.linalg.solve(self._noisy_covariance(self._scale), across.T)
        before = np.array([self.before(schedule) for schedule in schedules])
        means = before + self._beyond.mean() + solved.T @ self._left
        return means, self._covariance(schedules, schedules, self._scale) - across @ solved

    @cached_property
    def _beyond(self) -> Floats:
        """Measured minus expected before, for each."""
        return np.array([each.speed - self.before(each.schedule) for each in self.measured])

    @property
    def _left(self) -> Floats:
        """Residuals after the level is subtracted."""
        found: Floats = self._beyond - self._beyond.mean()
        return found

    @cached_property
    def _scale(self) -> float:
        """Likeliest factor of all spreads, for tasks whose knobs do more than the rules know."""
        return min(_SCALES, key=lambda scale: self.misfit(scale) + _DOUBT * math.log(scale))

    @property
    def _schedules(self) -> list[Schedule]:
        return [each.schedule for each in self.measured]

    def _noisy_covariance(self, scale: float) -> Floats:
        """Return the covariances of the measurements."""
        noise = np.diag([each.noise**2 for each in self.measured])
        return self._covariance(self._schedules, self._schedules, scale) + noise

    def _covariance(self, some: Sequence[Schedule], others: Sequence[Schedule], scale: float) -> Floats:
        found = np.full((len(some), len(others)), _LEVEL**2)
        same = np.full(found.shape, True)
        for knob in sorted({knob for schedule in (*some, *others) for knob in schedule}):
            values = ("", *legal(knob))  # the first where there is no such knob
            spread = self.spread(knob)
            shared = spread * spread / 2 * _likeness(knob)
            ours, theirs = (
                [values.index(schedule.get(knob, "")) for schedule in side] for side in (some, others)
            )
            found += scale**2 * shared[np.ix_(ours, theirs)]
            same &= np.equal.outer(ours, theirs)
        return found + _OWN**2 * same


def _likeness(knob: str) -> Floats:
    """Return correlations between the values of a knob: 1 of equal ones, 0 of its absence, which is first."""
    places = np.arange(len(legal(knob)))
    apart = np.abs(np.subtract.outer(places, places))
    alike = np.exp(-apart / _REACH) if name_of(knob) in _ORDERED else np.equal(apart, 0)
    return np.pad(alike.astype(float), (1, 0))


def _improvement(mean: float, deviation: float) -> float:
    """Return the mean of the positive part of a normal distribution."""
    if deviation == 0.0:
        return max(mean, 0.0)
    score = mean / deviation
    density = math.exp(-(score**2) / 2) / math.sqrt(2 * math.pi)
    return mean * math.erfc(-score / math.sqrt(2)) / 2 + deviation * density
