"""Effect of each knob of the builtin coder: the spreads of the rules judge, fitted to timed schedules.

    python -m benchmarks knobs RUN...

RUNs with `--search exhaustive` teach it, whose schedules are drawn at random. The fitted spreads maximize the
likelihood of all measurements under the model of the judge (`kernelwright.agent.tuner.gaussian_process`),
times a log-normal prior around 0.1; so a knob of few tasks stays near that. Nothing is measured. Machine:
any. Time: 10 minutes (estimate). Writes cpu/knobs.md and cpu/knobs-held-out.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from benchmarks.publishing import log, publish
from kernelwright.agent.builtin.schedule import name_of
from kernelwright.agent.protocols import Attempt, searched
from kernelwright.agent.tuner.gaussian_process import Posterior, TimedSchedule, measured, timed
from kernelwright.agent.tuner.posterior import reach
from kernelwright.agent.tuner.rules import RULES
from kernelwright.kernelbench.records import Fingerprint
from kernelwright.results import formatting
from kernelwright.results.store.database import RunDatabase

_GRID = [0.01 * 1.25**step for step in range(20)]  # 0.01 to 0.7
_USUAL, _FACTOR = 0.1, 2.0  # the prior of a spread: geometric mean and standard deviation
_SWEEPS = 3  # over all knobs
_FEWEST = 4  # schedules that a task must have
_FOLDS = 5
_RULES = {rule.knob: rule.spread for rule in RULES}
Spreads = Mapping[str, float]


@dataclass(frozen=True)
class _Schedules:
    """The timed schedules of a task."""

    task: str
    first: Attempt
    schedules: Sequence[TimedSchedule]

    @property
    def knobs(self) -> set[str]:
        """Names of the knobs that differ among schedules, without their kernels'."""
        values: dict[str, set[str]] = {}
        for each in self.schedules:
            for knob, value in each.schedule.items():
                values.setdefault(knob, set()).add(value)
        return {name_of(knob) for knob, seen in values.items() if len(seen) > 1}

    def misfit(self, spreads: Spreads) -> float:
        def spread(knob: str) -> float:
            return reach(knob, spreads.get(name_of(knob), _USUAL), self.first)

        return Posterior(self.schedules, spread).misfit()


def run(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")],
) -> None:
    known = []
    for folder in runs:
        with RunDatabase.open(folder) as database:
            machine = database.run.target.fingerprint
            for task in (entry.task for entry in database.tasks()):
                attempts = timed(searched(database.attempts(task.id)))
                if len(attempts) >= _FEWEST:
                    known.append(_Schedules(task.id, attempts[0], measured(attempts)))
    count = sum(len(each.schedules) for each in known)
    log(f"{count} schedules of {len({each.task for each in known})} tasks")
    spreads = _fitted(known)
    rows = [
        (
            rule.knob,
            str(len({each.task for each in known if rule.knob in each.knobs})),
            formatting.ratio(math.exp(spreads[rule.knob])) if rule.knob in spreads else formatting.NOTHING,
            formatting.ratio(math.exp(rule.spread)),
        )
        for rule in RULES
    ]
    _publish_held_out(known, machine)
    header = ("knob", "tasks", "a standard deviation, fitted", "of the rule")
    publish("knobs", "What knobs do", header, rows, machine)


def _publish_held_out(known: Sequence[_Schedules], machine: Fingerprint) -> None:
    """Write the likelihood of measurements with spreads fitted to other tasks, with profiles and without."""
    blind = [replace(each, first=replace(each.first, profile=None)) for each in known]
    likely = {
        "with the profiles of first candidates": _held_out(known),
        "without": _held_out(blind),
        "of the rules as they are, with profiles": -sum(each.misfit(_RULES) for each in known) / 2,
    }
    tasks = len({each.task for each in known})
    rows = [(name, str(tasks), f"{value:.1f}") for name, value in likely.items()]
    header = ("spreads", "tasks", "logarithm of the likelihood, but for a constant")
    publish("knobs-held-out", "How likely what was measured is", header, rows, machine)


def _held_out(known: Sequence[_Schedules]) -> float:
    """Log-likelihood of all tasks, each with spreads fitted to the others."""
    tasks = sorted({each.task for each in known})
    Random(0).shuffle(tasks)
    total = 0.0
    for fold in range(_FOLDS):
        held = set(tasks[fold::_FOLDS])
        spreads = _fitted([each for each in known if each.task not in held])
        total -= sum(each.misfit(spreads) for each in known if each.task in held) / 2
    return total


def _fitted(known: Sequence[_Schedules]) -> dict[str, float]:
    """Fitted spreads by knob, one after the other: that settles soon, for few knobs have the same effect."""
    spreads = dict.fromkeys(sorted(set().union(*(each.knobs for each in known))), _USUAL)
    for sweep in range(_SWEEPS):
        for knob in spreads:
            having = [each for each in known if knob in each.knobs]

            def misfit(spread: float, knob: str = knob, having: Sequence[_Schedules] = having) -> float:
                before = (math.log(spread / _USUAL) / math.log(_FACTOR)) ** 2
                return before + sum(each.misfit({**spreads, knob: spread}) for each in having)

            spreads[knob] = min(_GRID, key=misfit)
        log(f"sweep {sweep + 1}: " + ", ".join(f"{knob} {spread:.3f}" for knob, spread in spreads.items()))
    return spreads
