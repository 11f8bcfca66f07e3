"""Output of `kernelwright profile`: for C++ kernels on this machine, and for GPU kernels built for chips.

    python -m benchmarks profiles [NAME...]

Machine: CPU with valgrind; the GPU kernels are built for their chips and not run. Time: 5 minutes (estimate).
Writes cpu/profile-NAME.py and .md, and static/NAME.md.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.publishing import CPU, STATIC, log, made_by
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.machine import cache_folder, fingerprint, physical_threads
from kernelwright.kernelbench.records import Fingerprint
from kernelwright.results.store.folder import write_atomically

# Kernels that the builtin coder writes for this machine: a task each.
_OWN = {"softmax": "builtin:level1/softmax", "attention_pooling": "builtin:level2/attention_pooling"}
# Kernels in results/published/static: the task of each with its options, and the chips it is built for.
_FOR_CHIPS = {
    "matmul_scale_residual": (
        ("builtin:level2/matmul_scale_residual", "--precision", "fp16"),
        ("sm_90", "sm_80"),
    ),
    "transpose_naive": (("builtin:level1/transpose_copy",), ("sm_90",)),
}


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Kernels; all by default.")] = None,
) -> None:
    wanted = names or [*_OWN, *_FOR_CHIPS]
    for name in (name for name in _OWN if name in wanted):
        [task] = sources.resolve([_OWN[name]])
        file = CPU / f"profile-{name}.py"
        with Referee.start(cache=cache_folder()) as evaluator:
            machine = evaluator.target.fingerprint
            candidate = BuiltinCoder(partial(trace, evaluator.sessions.pool)).propose(task, [], None)
        write_atomically(file, candidate.source)
        output = _output(["profile", task.id, str(file), "--simulate"])
        _publish(file.with_suffix(".md"), f"{name} by the builtin coder, profiled", output, machine)
    machine = fingerprint(physical_threads())
    for name in (name for name in _FOR_CHIPS if name in wanted):
        (task_id, *options), chips = _FOR_CHIPS[name]
        command = ["profile", task_id, str(STATIC / f"{name}.py"), *options, "--target"]
        output = [line for chip in chips for line in _output([*command, chip])]
        _publish(STATIC / f"{name}.md", f"{name}, built for chips, not run", output, machine)


def _output(words: Sequence[str]) -> list[str]:
    """Return a command of kernelwright and its output, as lines of Markdown."""
    command = [sys.executable, "-m", "kernelwright", *words]
    wide = os.environ | {"COLUMNS": "110"}
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=wide).stdout
    lines = [line.rstrip() for line in printed.splitlines()]
    return [f"`kernelwright {shlex.join(words)}` prints", "", "```", *lines, "```", ""]


def _publish(file: Path, title: str, output: Sequence[str], machine: Fingerprint) -> None:
    text = "\n".join([f"# {title}", "", made_by("profiles", machine), "", *output])
    write_atomically(file, text)
    log(text)
