"""Accuracy and cost of each timing effort, by references against themselves.

    python -m benchmarks efforts

"search" is the effort for candidates in a search, here with a speedup of 1 to beat. Efforts take turns.
Machine: CPU, quiet. Time: 12 minutes (estimate). Writes cpu/efforts.md.
"""

import statistics
from typing import Annotated

import typer

from benchmarks.evaluator.accuracy import covering_one, errors, half_width, median_and_largest
from benchmarks.publishing import log, percent, publish
from benchmarks.references import AA_TASKS, itself
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import EFFORTS, SEARCH, Effort, Measurement, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Interval

_HEADER = ("effort", "evaluation", "interval", "narrow enough", "median error", "largest", "covers 1")


def run(repeats: Annotated[int, typer.Option(help="Evaluations of each task.")] = 3) -> None:
    compared = {"search": SEARCH, **EFFORTS}
    measured: dict[str, list[tuple[Interval, float]]] = {name: [] for name in compared}
    with Referee.start(cache=cache_folder()) as evaluator:
        for task in sources.resolve(AA_TASKS):
            for _ in range(repeats):
                for name, effort in compared.items():
                    to_beat = 1.0 if effort is SEARCH else None
                    evaluation = evaluator.evaluate(
                        task, itself(task), Measurement(("eager",), effort, to_beat)
                    )
                    assert evaluation.speedup and evaluation.speedup.eager, evaluation.reason
                    measured[name].append((evaluation.speedup.eager, evaluation.stages.total_s))
                    log(f"{task.id}: {name}: {measured[name][-1]}")
        machine = evaluator.target.fingerprint
    rows = [_row(name, compared[name], evaluations) for name, evaluations in measured.items()]
    publish("efforts", "The reference against itself with more and less timing", _HEADER, rows, machine)


def _row(name: str, effort: Effort, evaluations: list[tuple[Interval, float]]) -> tuple[str, ...]:
    speedups = [speedup for speedup, _ in evaluations]
    widths = [half_width(speedup) for speedup in speedups]
    narrow = sum(width <= effort.half_width for width in widths)
    return (
        name,
        f"{statistics.median(seconds for _, seconds in evaluations):.1f} s",
        f"±{percent(statistics.median(widths))}",
        f"{narrow}/{len(widths)} below {100 * effort.half_width:g}%",
        *median_and_largest(errors(speedups)),
        covering_one(speedups),
    )
