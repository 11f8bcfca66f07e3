"""Kernels of an earlier commit and of this checkout, measured beside each other.

    python -m benchmarks regression COMMIT

Each commit writes its own kernels of twenty level 1 tasks, with its own tuner, in a run that is kept in runs/
and resumed. Then this checkout's referee measures four of each task in turns: the first candidate and the
winner of either. "Earned" is the speedup of the tuner's winner over the first candidate, both measured again,
so that noise in the search does not count as a gain. Measured tasks are kept and not measured again. Machine:
CPU, quiet. Time: 60 minutes. Writes cpu/regression.md.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.publishing import log, publish
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import EFFORTS, Measurement, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import write_atomically
from kernelwright.results.summary import best_attempt

_TASKS = 20
_NOTHING = "-"
_HEADER = ("task", "{commit}: first", "winner", "now: first", "winner", "now / {commit}", "earned")


def run(
    commit: Annotated[str, typer.Argument(help="Commit whose kernels are held against this checkout's.")],
    rounds: Annotated[int, typer.Option(help="Candidates for each task.")] = 6,
    repeats: Annotated[int, typer.Option(help="Measurements of each kernel.")] = 3,
) -> None:
    every = sources.resolve([], suite="builtin:level1")
    tasks = every[:: len(every) // _TASKS][:_TASKS]
    words = [*(task.id for task in tasks), "--rounds", str(rounds), "--effort", "quick"]
    folders = [Path("runs").resolve() / f"bench-regression-{name}" for name in (commit, "now")]
    for tree, folder in zip((_tree_of(commit), Path.cwd()), folders, strict=True):
        _run_in(tree, words, folder)
    kept = Path("runs") / f"bench-regression-{commit}.json"  # the tasks that are measured
    rows: dict[str, list[str]] = json.loads(kept.read_text()) if kept.exists() else {}
    with Referee.start(cache=cache_folder()) as referee:
        for task in tasks:
            if task.id not in rows:
                kernels = [kernel for folder in folders for kernel in _kernels(folder, task)]
                old_first, old, first, new = _measured(referee, task, kernels, repeats)
                times = map(_times, (old_first, old, first, new))
                rows[task.id] = [task.id, *times, _ratio(new, old), _ratio(new, first)]
                write_atomically(kept, json.dumps(rows))
            log(" | ".join(rows[task.id]))
        machine = referee.target.fingerprint
    compared = [row for row in rows.values() if _NOTHING not in row]
    means = [statistics.geometric_mean(float(row[column]) for row in compared) for column in (-2, -1)]
    total = [f"geometric mean of {len(compared)}", "", "", "", "", *(f"{mean:.3f}" for mean in means)]
    header = [cell.format(commit=commit) for cell in _HEADER]
    title = f"Speedups over eager of the kernels of {commit} and of now, measured in turns"
    command = f"regression {commit} --rounds {rounds} --repeats {repeats}"
    publish("regression", title, header, [*rows.values(), total], machine, command)


def _tree_of(commit: str) -> Path:
    """Return the folder below runs/ that a commit is checked out to."""
    tree = Path("runs").resolve() / f"commit-{commit}"
    if not tree.exists():
        archive = subprocess.run(["git", "archive", commit], stdout=subprocess.PIPE, check=True)
        tree.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree


def _run_in(tree: Path, words: Sequence[str], out: Path) -> None:
    """Make or resume a run with the code of a checkout; it knows no other runs, and has its own caches."""
    home = out.with_name(f"{out.name}-home")
    environment = {**os.environ, "PYTHONPATH": str(tree), "KERNELWRIGHT_HOME": str(home)}
    given = ["--resume", str(out)] if (out / "run.db").exists() else [*words, "--out", str(out)]
    command = [sys.executable, "-m", "kernelwright", "run", *given]
    subprocess.run(command, cwd=tree, env=environment, check=True)


def _kernels(folder: Path, task: Task) -> tuple[Candidate | None, Candidate | None]:
    """Return the first candidate that a run had of a task, and its winner."""
    with RunDatabase.open(folder, read_only=True) as database:
        attempts = database.attempts(task.id)
    best = best_attempt(attempts)
    return (attempts[0].candidate if attempts else None, best.candidate if best is not None else None)


def _measured(
    referee: Referee, task: Task, kernels: Sequence[Candidate | None], repeats: int
) -> list[float | None]:
    """Return each kernel's median speedup over eager; equal kernels are measured once."""
    speedups: dict[str, list[float]] = {}
    for _ in range(repeats):
        for kernel in {kernel.sha256: kernel for kernel in kernels if kernel is not None}.values():
            evaluation = referee.evaluate(task, kernel, Measurement(("eager",), EFFORTS["quick"]))
            if evaluation.speedup is not None and evaluation.speedup.eager is not None:
                speedups.setdefault(kernel.sha256, []).append(evaluation.speedup.eager.median)
    found = [speedups.get(kernel.sha256) if kernel is not None else None for kernel in kernels]
    return [statistics.median(values) if values else None for values in found]


def _times(speedup: float | None) -> str:
    return f"{speedup:.2f}×" if speedup is not None else _NOTHING


def _ratio(new: float | None, old: float | None) -> str:
    return f"{new / old:.3f}" if new and old else _NOTHING
