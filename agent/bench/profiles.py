"""What `kernelwright profile` says of a kernel of the builtin coder here, and of GPU kernels for chips."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.agent.bench.publishing import PUBLISHED, in_words, log
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.machine import cache_folder, fingerprint, physical_threads
from kernelwright.kernelbench.records import Fingerprint
from kernelwright.results.store.folder import write_atomically

STATIC = Path("results") / "published" / "static"
# Files there, with what `profile` is given for each: a task and options, and the chips that it is built for.
KERNELS = {
    "matmul_scale_residual": (
        ("builtin:level2/matmul_scale_residual", "--precision", "fp16"),
        ("sm_90", "sm_80"),
    ),
    "transpose_naive": (("builtin:level1/transpose_copy",), ("sm_90",)),
}
OWN = {"softmax": "builtin:level1/softmax", "attention_pooling": "builtin:level2/attention_pooling"}


def profiles(
    names: Annotated[list[str] | None, typer.Argument(help="Some of them alone.")] = None,
) -> None:
    """What `kernelwright profile` says of C++ kernels on this machine, and of GPU kernels for chips."""
    wanted = names or [*OWN, *KERNELS]
    for name, task_name in OWN.items():
        if name not in wanted:
            continue
        [task] = sources.resolve([task_name])
        file = PUBLISHED / f"profile-{name}.py"
        with Referee.start(cache=cache_folder()) as evaluator:
            mark = evaluator.target.fingerprint
            written = BuiltinCoder(partial(trace, evaluator.sessions.pool)).propose(task, [], None)
        write_atomically(file, written.source)
        said = _said(["profile", task_name, str(file), "--simulate"])
        _publish(PUBLISHED / f"profile-{name}.md", f"{name} by the builtin coder, profiled", said, mark)
    mark = fingerprint(physical_threads())
    for name, ((task_name, *options), chips) in KERNELS.items():
        if name not in wanted:
            continue
        asked = ["profile", task_name, str(STATIC / f"{name}.py"), *options, "--target"]
        lines = [line for chip in chips for line in _said([*asked, chip])]
        _publish(STATIC / f"{name}.md", f"{name}, built for chips, not run", lines, mark)


def _said(words: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "kernelwright", *words]
    wide = os.environ | {"COLUMNS": "110"}
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=wide).stdout
    kept = [line.rstrip() for line in printed.splitlines()]
    return [f"`kernelwright {shlex.join(words)}` prints", "", "```", *kept, "```", ""]


def _publish(file: Path, title: str, said: Sequence[str], mark: Fingerprint) -> None:
    lines = [
        f"# {title}",
        "",
        f"Made by `python -m kernelwright.agent.bench profiles` on {in_words(mark)}.",
        "",
        *said,
    ]
    write_atomically(file, "\n".join(lines))
    log("\n".join(lines))
