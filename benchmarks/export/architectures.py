"""Architectures of Transformers with kernels for their parts: what must not change does not.

    python -m benchmarks architectures

Of each of fifteen models a step is taken apart, the builtin coder writes kernels for the parts, one candidate
each, forward and gradient, for any batch and length; with all of them in it, timed or not, the model is held
against itself without. Runs in runs/bench-architectures go on where they are. Machine: CPU, with the `dev`
extra; it times nothing that is published. Time: 90 minutes. Writes models/architectures.md.
"""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.publishing import log, made_by, table
from kernelwright.agent.options.evaluation import EvaluationOptions
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.search.registry import SearchOptions
from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.optimize import RUN, ModelOptimization
from kernelwright.kernelbench.errors import KernelwrightError
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.store.folder import write_atomically

_SCRIPT = Path("results") / "published" / "models" / "architectures.py"
_RUNS = Path("runs") / "bench-architectures"
_SIZES = ("batch=2,length=32", "batch=3,length=40", "batch=1,length=48,hidden")
_CHECKS = ("step", "autocast", "LoRA", "checkpointing", "compiled", "generate", "DDP", "FSDP2")


def run(only: Annotated[str, typer.Option(help="Some, by commas; the table is printed.")] = "") -> None:
    names = only.split(",") if only else runpy.run_path(str(_SCRIPT))["ARCHITECTURES"]
    rows, notes = [], []
    for name in names:
        found = _checked(name)
        cells = [found.get(check, "") for check in _CHECKS]
        notes += [
            f"- {name}, {what}: {cell}"
            for what, cell in zip(_CHECKS, cells, strict=True)
            if cell not in ("ok", "-")
        ]
        short = ["no" if cell not in ("ok", "-") else cell for cell in cells]
        rows.append((name, found["kernels"], found["calls"], *short))
    machine = next(iter(Winner.all_of(_RUNS / names[0] / RUN))).evaluation.target.fingerprint
    text = [
        "# Architectures with their kernels",
        "",
        made_by("architectures", machine),
        "",
        "Each is a small model of Transformers with random weights, taken apart, with kernels of the builtin",
        "coder for any batch and length in the place of its parts, whether they are faster or not. `calls`:",
        "those of a step that kernels compute, of all calls of replaced layers and functions. The columns",
        "after it hold the model with kernels against the model without: loss and gradients are at most four",
        "times as far from float64 as stock's; compiled is one graph (`fullgraph=True`) at three sizes; DDP",
        "and FSDP2 are two processes; generated tokens are equal.",
        "",
        *table(("architecture", "kernels", "calls", *_CHECKS), rows),
        "",
        *notes,
    ]
    if only:
        log("\n".join(text))
    else:
        write_atomically(_SCRIPT.with_suffix(".md"), "\n".join(text) + "\n")


def _checked(name: str) -> dict[str, Any]:
    """Return what was found for a model, from its folder if it was before."""
    out = _RUNS / name
    known = out / "checks.json"
    if known.exists():
        kept: dict[str, Any] = json.loads(known.read_text())
        return kept
    log(name)
    work = ModelOptimization(
        ModelName.of(f"{_SCRIPT}:{name}", sizes=_SIZES), True, out, most_calls=24, say=log
    )
    config = RunConfig(
        search=SearchOptions(rounds=1), evaluation=EvaluationOptions(effort="quick", baselines=["eager"])
    )
    try:
        package, results = work.package_of_all(config, f"python -m benchmarks architectures --only {name}")
    except KernelwrightError as error:
        return {"kernels": error.message, "calls": ""}
    kernels = [
        result.part if result.package else f"not {result.part} ({result.reason})" for result in results
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(_SCRIPT), name, str(package)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    log(done.stdout)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    by_kernel, by_layer = found["calls"]
    found |= {"kernels": ", ".join(kernels), "calls": f"{by_kernel} of {by_kernel + by_layer}"}
    write_atomically(known, json.dumps(found, indent=1) + "\n")
    return found
