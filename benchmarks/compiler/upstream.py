"""The builtin coder on the upstream KernelBench problems that `python -m benchmarks draw` has drawn.

    KERNELBENCH_DIR=... python -m benchmarks upstream

A run that is already in runs/ is resumed with its own options. Machine: CPU, quiet, with a checkout of
KernelBench. Time: 35 minutes with four baselines. Writes cpu/upstream.md and .csv.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.runs import SAMPLE, baseline_options, run_and_publish, upstream_run
from kernelwright.kernelbench.cli import Baselines, CompileLimit
from kernelwright.kernelbench.evaluator import COMPILE_S
from kernelwright.kernelbench.sources.checkout import VARIABLE


def run(
    kernelbench_dir: Annotated[Path, typer.Option(envvar=VARIABLE, help="A KernelBench checkout.")],
    rounds: Annotated[int, typer.Option(help="Candidates for each task.")] = 3,
    baselines: Baselines = None,
    compile_limit: CompileLimit = COMPILE_S,
) -> None:
    os.environ[VARIABLE] = str(kernelbench_dir.resolve())  # not in the command, which is published
    words = ["--suite", str(SAMPLE), "--rounds", str(rounds), *baseline_options(baselines, compile_limit)]
    run_and_publish(words, "upstream", upstream_run())
