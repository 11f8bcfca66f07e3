"""The builtin coder on the built-in suite, one table a level.

    python -m benchmarks suite [LEVEL...]

A run that is already in runs/ is resumed with its own options. Machine: CPU, quiet. Time: 65 minutes, with
max-autotune and traffic as further baselines 86. Writes cpu/suite-levelN.md and .csv.
"""

from typing import Annotated

import typer

from benchmarks.runs import baseline_options, run_and_publish, suite_run
from kernelwright.kernelbench.cli import Baselines, CompileLimit
from kernelwright.kernelbench.evaluator import COMPILE_S


def run(
    levels: Annotated[list[int] | None, typer.Argument(help="Levels 1, 2, 3; all by default.")] = None,
    rounds: Annotated[int, typer.Option(help="Candidates for each task.")] = 2,
    baselines: Baselines = None,
    compile_limit: CompileLimit = COMPILE_S,
) -> None:
    for level in levels or (1, 2, 3):
        words = ["--suite", f"builtin:level{level}", "--rounds", str(rounds)]
        words += baseline_options(baselines, compile_limit)
        run_and_publish(words, f"suite-level{level}", suite_run(level))
