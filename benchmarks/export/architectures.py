"""Architectures of Transformers with kernels for their parts: what must not change does not.

    python -m benchmarks architectures
    python -m benchmarks architectures --only t5,bart

Of each of fifteen models a step is taken apart, the builtin coder writes kernels for the parts, one candidate
each, forward and gradient, for any batch and length, which are verified; with all of them in it, fast or not,
the model is held against itself without. Nothing is timed. Each check is kept in runs/bench-architectures
when it is done, and the page is of all that are there. Machine: CPU, with the `dev` extra, other work does
not matter. Time: 10 to 20 minutes a model, beside other work. Writes models/architectures.md.
"""

import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.export.verified import verified
from benchmarks.publishing import log, made_by, table
from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.optimize import ModelOptimization, packaged_kernel
from kernelwright.kernelbench.errors import KernelwrightError, UsageError
from kernelwright.kernelbench.records import Fingerprint
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.store.folder import write_atomically

_SCRIPT = Path("results") / "published" / "models" / "architectures.py"
_RUNS = Path("runs") / "bench-architectures"
_SIZES = ("batch=2,length=32", "batch=1,length=48,hidden")
_CHECKS = ("step", "autocast", "LoRA", "checkpointing", "generate", "DDP", "FSDP2", "compiled")
_FINE = ("ok", "-", "")
_PACKAGED, _RESULTS = "packaged.json", "checks.json"


def run(only: Annotated[str, typer.Option(help="Some of them, by commas.")] = "") -> None:
    names = runpy.run_path(str(_SCRIPT))["ARCHITECTURES"]
    wanted = only.split(",") if only else names
    if unknown := [name for name in wanted if name not in names]:
        raise UsageError(f"there is no architecture {unknown[0]}", f"give some of {', '.join(names)}")
    for name in wanted:
        log(name)
        _check(name)
    found = {name: _found(name) for name in names if (_RUNS / name / _PACKAGED).exists()}
    text = _page(found, len(names))
    log(text)
    write_atomically(_SCRIPT.with_suffix(".md"), text)


def _found(name: str) -> dict[str, Any]:
    """Return what is known of a model."""
    folder = _RUNS / name
    checks = json.loads((folder / _RESULTS).read_text()) if (folder / _RESULTS).exists() else {}
    return {**json.loads((folder / _PACKAGED).read_text()), **checks}


def _page(found: Mapping[str, Mapping[str, Any]], count: int) -> str:
    """Return the page of all models that were checked."""
    rows, notes = [], []
    for name, each in found.items():
        cells = [str(each.get(check, "")) for check in _CHECKS]
        pairs = [*zip(_CHECKS, cells, strict=True), *each["left"].items()]
        notes += [f"- {name}, {what}: {cell}" for what, cell in pairs if cell not in _FINE]
        found_calls = each.get("calls", "")
        calls = f"{found_calls[0]} of {sum(found_calls)}" if isinstance(found_calls, list) else found_calls
        kernels = dict.fromkeys(re.sub(r"kernel_\d+_", "", each["kernels"]).split(", "))  # some of two shapes
        rows.append((name, ", ".join(kernels), calls, *("no" if c not in _FINE else c for c in cells)))
    machines = [Fingerprint.model_validate(each["machine"]) for each in found.values() if each["machine"]]
    lines = [
        "# Architectures with their kernels",
        "",
        *(made_by("architectures", machine) for machine in machines[:1]),
        f"It has run for {len(found)} of {count} architectures.",
        "",
        "Each is a small model of Transformers with random weights, taken apart, with kernels of the",
        "builtin coder for any batch and length in the place of its parts, whether they are faster or not;",
        "these were verified and not timed. `calls`: those of a step that kernels compute, of all calls of",
        "replaced layers and functions. The columns after it hold the model with kernels against the model",
        "without: loss and gradients are at most four times as far from float64 as stock's; compiled is one",
        "graph (`fullgraph=True`) at three sizes; DDP and FSDP2 are two processes; tokens are equal.",
        "A hyphen is what a model does not do; an empty cell has not been run.",
        "",
        *table(("architecture", "kernels", "calls", *_CHECKS), rows),
    ]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def _check(name: str) -> None:
    """Package kernels for a model and run the checks; what is there is not done again."""
    folder = (_RUNS / name).resolve()
    packaged = folder / _PACKAGED
    if not packaged.exists():
        write_atomically(packaged, json.dumps(_prepared(name, folder), indent=1) + "\n")
    written = json.loads(packaged.read_text())["package"]
    if not written:
        return
    package = str(folder / "package" / Path(written).name)  # the folder may have moved since
    results = folder / _RESULTS
    done = subprocess.run([sys.executable, "-W", "ignore", str(_SCRIPT), name, package, str(results)])
    if done.returncode not in (0, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT):
        known = json.loads(results.read_text()) if results.exists() else {}
        what = next((each for each in ("calls", *_CHECKS) if each not in known), "")
        if not what:
            done.check_returncode()
        why = f"it ended its process with status {done.returncode}"
        write_atomically(results, json.dumps({**known, what: why}, indent=1) + "\n")
        _check(name)


def _prepared(name: str, folder: Path) -> dict[str, Any]:
    """Return the package of kernels for a model's parts, their names, and why others are left out."""
    command = f"python -m benchmarks architectures --only {name}"
    work = ModelOptimization(
        ModelName.of(f"{_SCRIPT}:{name}", sizes=_SIZES), True, folder, most_calls=24, say=log
    )
    found: dict[str, Any] = {"kernels": "", "package": "", "machine": None, "left": {}}
    try:
        kernels, found["left"] = _kernels(work, folder / "verified", command)
        metadata = _packaged(kernels, folder / "package", f"{name}_kernels", found["left"])
    except KernelwrightError as error:
        return found | {"left": found["left"] | {"no package": error.message}}
    first = next(iter(kernels.values())).winner
    return found | {
        "kernels": ", ".join(each["name"] for each in metadata["kernels"]),
        "package": str(folder / "package" / metadata["name"]),
        "machine": first.evaluation.target.fingerprint.model_dump(mode="json"),
    }


def _kernels(
    work: ModelOptimization, folder: Path, command: str
) -> tuple[dict[str, PackagedKernel], dict[str, str]]:
    """Return the kernels of a model's parts by name, and why those that are not right are left out."""
    parts = work.chosen()
    checked = verified([path for part in parts for path in work.tasks_of(part)], folder, command)
    left = {each.task: f"{each.verdict}: {each.reason}" for each in checked if each.winner is None}
    right = {each.task: each.winner for each in checked if each.winner is not None}
    of_parts = {Path(part.task).stem: part for part in parts}
    found = {
        task: packaged_kernel(part, right[task], [*right.values()])
        for task, part in of_parts.items()
        if task in right
    }
    return found, left


def _packaged(
    kernels: Mapping[str, PackagedKernel], folder: Path, name: str, left: dict[str, str]
) -> dict[str, Any]:
    """Write a package of all kernels; return its metadata. `left` gets those that cannot be packaged.

    Raises UsageError if there is none.
    """
    shutil.rmtree(folder, ignore_errors=True)
    log(f"packaging {len(kernels)} kernels")
    try:
        return write([*kernels.values()], folder, name, measure=False)
    except UsageError as error:
        why = error.message
    alone = {}
    for task, kernel in kernels.items():
        with tempfile.TemporaryDirectory() as trial:
            try:
                write([kernel], Path(trial) / "package", name, measure=False)
                alone[task] = kernel
            except UsageError as error:
                left[task] = error.message
    if not alone:
        raise UsageError(f"no kernel can be packaged: {why}", "choose another model")
    return write([*alone.values()], folder, name, measure=False)
