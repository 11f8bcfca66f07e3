"""Gain of working on many tasks at once where a language model writes the kernels.

    python -m benchmarks scheduling

Twelve tasks with a scripted model: one task after the other, and as it is by default. The model submits
kernels of the builtin coder, and has broken two of the first four. Against eager, with `--effort quick`.
Device time is the timing of evaluations, when nothing else runs; on the cpu target their other work
(building, loading, verifying) needs the same cores. Machine: CPU, quiet. Time: 25 minutes. Writes
cpu/scheduling.md.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.publishing import log, publish
from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint
from kernelwright.agent.llm.endpoint.scripted_model import ScriptedModel
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.results.store.database import RunDatabase

_TASKS = (
    "batch_norm_residual_relu", "add_rms_norm", "layer_norm_modulate", "layer_norm_residual",
    "rms_norm_silu_gate", "swiglu_gate", "masked_softmax", "focal_loss", "dice_loss", "reparameterize_kl",
    "gaussian_nll_loss", "adaptive_instance_norm",
)  # fmt: skip


_WAYS = {"one after the other": ("--tasks-at-once", "1", "--workers", "1"), "default": ()}
_HEADER = (
    "tasks", "wall time", "device time", "other work of evaluations", "model calls", "longest chain of calls",
    "wall / max(device, chain)", "wall / max(device + other, chain)", "times shorter",
)  # fmt: skip


def run(
    latency_s: Annotated[float, typer.Option(help="Seconds that a reply of the model takes.")] = 5.0,
    rounds: Annotated[int, typer.Option(help="Candidates for each task.")] = 6,
) -> None:
    tasks = sources.resolve([f"builtin:level2/{name}" for name in _TASKS])
    model = ScriptedModel(tasks, cache_folder(), latency_s)
    log(f"kernels of {len(tasks)} tasks are written")
    rows, machine, walls = [], None, []
    with tempfile.TemporaryDirectory() as folder, FakeEndpoint().serving() as endpoint:
        for name, words in _WAYS.items():
            model.restart()
            endpoint.script = model
            out = Path(folder) / name.replace(" ", "-")
            wall_s = _run_s([task.id for task in tasks], rounds, endpoint.base_url, out, words)
            with RunDatabase.open(out, read_only=True) as database:
                machine = database.run.target.fingerprint
                attempts = [a for task in tasks for a in database.attempts(task.id)]
                calls = database.llm_calls()
            device_s = sum(a.evaluation.stages.time_s for a in attempts)
            other_s = sum(a.evaluation.stages.total_s for a in attempts) - device_s
            chain_s = latency_s * max(Counter(call.task for call in calls).values())
            walls.append(wall_s)
            rows.append(
                (name, f"{wall_s:.0f} s", f"{device_s:.0f} s", f"{other_s:.0f} s", f"{len(calls)}",
                 f"{chain_s:.0f} s", f"{wall_s / max(device_s, chain_s):.2f}",
                 f"{wall_s / max(device_s + other_s, chain_s):.2f}", f"{walls[0] / wall_s:.2f}")
            )  # fmt: skip
            log(str(rows[-1]))
    assert machine is not None
    title = f"{len(tasks)} tasks, {rounds} rounds, a model that takes {latency_s:g} s to answer"
    publish("scheduling", title, _HEADER, rows, machine)


def _run_s(tasks: list[str], rounds: int, url: str, out: Path, words: tuple[str, ...]) -> float:
    """Seconds that `kernelwright run` takes, with an empty build cache."""
    command = [
        *(sys.executable, "-m", "kernelwright", "run", *tasks, "--coder", "llm", "--model", "scripted"),
        *("--rounds", str(rounds), "--effort", "quick", "--baseline", "eager", "--out", str(out)),
        *("--seed", "none", "--repairs", "0"),  # as many model calls and evaluations as there are rounds
        *words,
    ]
    home = Path(f"{out}-home")
    shutil.copytree(cache_folder() / "ceilings", home / "ceilings")  # a task may stop near them
    environment = {**os.environ, "OPENAI_BASE_URL": url, "KERNELWRIGHT_HOME": str(home)}
    started = time.monotonic()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started
