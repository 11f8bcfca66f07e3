"""Random forest that predicts the speed of schedules, and so the order in which to try them.

Its features (GPPerf, github.com/pavlyhalim/GPPerf, has such a forest for matrix products) are knobs, what the
task moves and computes, and what the loops of its first kernels consist of. It learns the time of a
candidate over that of the task's first one, so tasks of any size teach each other. Nothing that it says is
part of a verdict: what it puts first is measured like all else.
"""

import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, KERNEL_KNOBS
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.gaussian_process import measured, timed
from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.operator_families import FAMILIES, operator_families
from kernelwright.kernelbench.records import Language, Task

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

LEAST = 30  # timed schedules to learn from
_TREES = 200
_LEAF = 2  # schedules at least
_OF_THE_CALL = ("minimal_bytes", "flops", "memory_floor", "compute_floor")  # metrics, of which the logarithm
_OF_LOOPS = ("packed_share", "zmm_share", "fma_share", "divisions", "gathers", "spills", "calls_in_loops")
_UNKNOWN = -1.0


@dataclass(frozen=True)
class Example:
    """A schedule of a task, and the logarithm of its time over that of the task's first candidate."""

    features: tuple[float, ...]
    slowness: float


def examples(task: Task, attempts: Sequence[Attempt], language: Language = "cpp") -> list[Example]:
    """Return the builtin coder's timed candidates of a task as examples; none if the first was not timed."""
    builtin = [a for a in attempts if (a.candidate.author, a.candidate.language) == ("builtin", language)]
    known = timed(builtin)
    if not known or known[0] is not attempts[0]:
        return []
    first, *_ = speeds = [each.speed for each in measured(known)]
    return [
        Example(features(task, known[0], attempt.candidate.schedule), first - speed)
        for attempt, speed in zip(known, speeds, strict=True)
    ]


def features(task: Task, first: Attempt, schedule: Mapping[str, str]) -> tuple[float, ...]:
    """Return a schedule's features; `first`: the task's first candidate, whose profile describes the task."""
    profile = first.profile
    found = [*_knobs(schedule), *_knobs(first.candidate.schedule)]
    for name in _OF_THE_CALL:
        value = profile.value(name) if profile is not None else None
        found.append(math.log1p(value) if value is not None else _UNKNOWN)
    for name in _OF_LOOPS:
        values = [m.value for m in profile.metrics if m.name == name and m.kernel] if profile else []
        found.append(sum(values) / len(values) if values else _UNKNOWN)
    found.append(profile.speed_of_light or _UNKNOWN if profile is not None else _UNKNOWN)
    families = operator_families(task)
    found += [float(family in families) for family in FAMILIES]
    return tuple(found)


def _knobs(schedule: Mapping[str, str]) -> list[float]:
    """Return a number for each knob: its index among the legal values, averaged over all kernels."""
    places: dict[str, list[int]] = {}
    for knob, value in schedule.items():
        name = knob.rpartition(".")[2]
        legal = KERNEL_KNOBS[name] if "." in knob else GRAPH_KNOBS[name]
        places.setdefault(name, []).append(legal.index(value))
    return [
        sum(places[name]) / len(places[name]) if name in places else _UNKNOWN
        for name in (*GRAPH_KNOBS, *KERNEL_KNOBS)
    ]


def check_installed() -> None:
    """Check for scikit-learn. Raises MissingPrerequisite."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingPrerequisite(
            "the surrogate is a random forest of scikit-learn", "pip install 'kernelwright[surrogate]'"
        )


class Surrogate:
    """Forest of known examples. Raises MissingPrerequisite without scikit-learn, if it has enough of them."""

    def __init__(self, known: Iterable[Example]) -> None:
        self.known = tuple(known)

    @cached_property
    def _forest(self) -> "RandomForestRegressor":
        check_installed()
        from sklearn.ensemble import RandomForestRegressor  # a second, which other commands do without

        forest = RandomForestRegressor(n_estimators=_TREES, min_samples_leaf=_LEAF, random_state=0)
        return forest.fit(
            [example.features for example in self.known], [example.slowness for example in self.known]
        )

    def gains(
        self,
        task: Task,
        history: Sequence[Attempt],
        best: Mapping[str, str],
        schedules: Sequence[Mapping[str, str]],
    ) -> list[float]:
        """Time before / after of going from the `best` schedule to each of these.

        None with fewer than LEAST examples.
        """
        if len(self.known) < LEAST:
            return []
        asked = [features(task, history[0], schedule) for schedule in (best, *schedules)]
        before, *after = self._forest.predict(asked)
        return [math.exp(before - slowness) for slowness in after]
