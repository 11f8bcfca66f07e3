"""The builtin coder on whole suites."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.agent.bench.covering import covered, section
from kernelwright.agent.bench.drawing import SAMPLE, upstream_run
from kernelwright.agent.bench.publishing import PUBLISHED, suite_run
from kernelwright.kernelbench.cli import Baselines, CompileLimit
from kernelwright.kernelbench.evaluator import COMPILE_S
from kernelwright.kernelbench.sources.checkout import VARIABLE
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import write_atomically


def suite(
    levels: Annotated[list[int] | None, typer.Argument(help="1, 2, 3: all by default.")] = None,
    rounds: int = 2,
    baselines: Baselines = None,
    compile_limit: CompileLimit = COMPILE_S,
) -> None:
    """The builtin coder on the built-in suite, a table a level."""
    for level in levels or (1, 2, 3):
        _run(
            ["--suite", f"builtin:level{level}", "--rounds", str(rounds), *_held(baselines, compile_limit)],
            f"suite-level{level}",
            suite_run(level),
        )


def upstream(
    kernelbench_dir: Annotated[Path, typer.Option(envvar="KERNELBENCH_DIR")],
    rounds: int = 3,
    baselines: Baselines = None,
    compile_limit: CompileLimit = COMPILE_S,
) -> None:
    """The builtin coder on the upstream KernelBench problems that `draw` has drawn."""
    os.environ[VARIABLE] = str(kernelbench_dir.resolve())  # not in the command, which is published
    asked = ["--suite", str(SAMPLE), "--rounds", str(rounds), *_held(baselines, compile_limit)]
    _run(asked, "upstream", upstream_run())


def _held(baselines: Sequence[str] | None, compile_limit: float) -> list[str]:
    """The options that say what winners are held against, where that is not the default."""
    options = [word for name in baselines or () for word in ("--baseline", name)]
    return options + (["--compile-limit", f"{compile_limit:g}"] if compile_limit != COMPILE_S else [])


def _run(arguments: list[str], name: str, out: Path) -> None:
    resume = (out / "run.db").exists()
    wanted = ["--resume", str(out)] if resume else [*arguments, "--out", str(out)]
    subprocess.run([sys.executable, "-m", "kernelwright", "run", *wanted], check=True)
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    for format in ("md", "csv"):
        target = PUBLISHED / f"{name}.{format}"
        command = [
            sys.executable,
            "-m",
            "kernelwright",
            "report",
            str(out),
            "--format",
            format,
            "--output",
            str(target),
        ]
        subprocess.run(command, check=True)
    with RunDatabase.open(out, read_only=True) as database:
        shares = section(covered(database))
    table = PUBLISHED / f"{name}.md"
    write_atomically(table, table.read_text() + shares)
