"""The kernels of results/published/kernels: found by the builtin coder, exported in every format, tested.

    python -m benchmarks kernels --rounds 4

Forward and backward kernels are searched for, verified and packaged, the packages' own tests are run, and
models are trained with them. Runs in runs/bench-kernels are not measured again. Machine: CPU, quiet, with the
`dev` extra. Time: 18 minutes. Writes kernels/README.md, kernels/cpu/*.py and kernels/curves.svg.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.publishing import log, made_by, table
from benchmarks.runs import kernelwright, make_run
from kernelwright.kernelbench.records import Fingerprint
from kernelwright.results import formatting
from kernelwright.results.dropin.format import Format
from kernelwright.results.dropin.package import placed
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.store.folder import write_atomically

PUBLISHED = Path("results") / "published" / "kernels"
_RUNS = Path("runs") / "bench-kernels"
_FASTER = _RUNS / "faster"
_WHOLE = str(PUBLISHED / "llama.py")
_NAME = "fused_kernels"
_LEARNT = ("docs/LOG.md", "--steps", "300", "--picture", str(PUBLISHED / "curves.svg"))
# Layers that kernels replace, by format, of the frameworks that are installed; other kernels are functions.
_LLAMA = {"rms_norm": "LlamaRMSNorm", "swiglu": "LlamaMLP", "layer_norm": "LayerNorm"}
_LAYERS: Mapping[Format, Mapping[str, str]] = {
    Format.torch: _LLAMA,
    Format.hf: _LLAMA,
    Format.torchtitan: {"rms_norm": "torchtitan.models.common.nn_modules.RMSNorm"},
    Format.megatron: {"layer_norm": "megatron.core.transformer.torch_norm.WrappedTorchNorm"},
}
# Tasks whose gradients need more of the forward than its outputs.
_SAVING = ("gated_linear_attention_chunk", "gelu_linear", "layer_norm", "swiglu")


def run(rounds: Annotated[int, typer.Option(help="Candidates for each task.")] = 6) -> None:
    tasks = sorted((PUBLISHED / "tasks").glob("*.py"))
    forward = _RUNS / "forward"
    make_run([*map(str, tasks), "--rounds", str(rounds)], forward)
    backward = {task.stem: _gradient(task, rounds) for task in tasks}
    tested = {form: _exported(form, forward, backward) for form in _LAYERS}
    served = _output("shapes", Format.torch)
    trained = [
        _output("train_llama", Format.torch, *_LEARNT),
        _output("train_torchtitan", Format.torchtitan),
    ]
    metadata = _metadata(_RUNS / Format.torch)
    _export(Format.torch, _FASTER, forward, backward, "--inside", _WHOLE)
    for folder in (forward, *backward.values()):
        for winner in Winner.all_of(folder):
            write_atomically(PUBLISHED / "cpu" / f"{winner.name}.py", winner.candidate.source)
    ways = {name: _way(folder) for name, folder in backward.items()}
    faster = _metadata(_FASTER)["measured_inside"]
    write_atomically(PUBLISHED / "README.md", _page(rounds, metadata, faster, ways, tested, served, trained))


def _metadata(package: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads((package / _NAME / "metadata.json").read_text())
    return metadata


def _way(folder: Path) -> str:
    """Describe how a gradient is computed, from its run."""
    languages = {winner.name: winner.candidate.language for winner in Winner.all_of(folder)}
    saved = ", of what the forward saves" if len(languages) > 1 else ""
    own = languages[folder.name] != "torch"
    return f"{'kernel' if own else 'torch’s, for no kernel was faster'}{saved}"


def _gradient(task: Path, rounds: int) -> Path:
    """Run a task's gradient, and the forward that saves what the gradient needs."""
    out = _RUNS / f"{task.stem}_gradient"
    sources = [f"{out}.py"]
    if task.stem in _SAVING:
        sources.append(str(_RUNS / f"{task.stem}_training.py"))
        kernelwright("gradient", str(task), "--out", sources[0], "--forward", sources[1])
    else:
        kernelwright("gradient", str(task), "--out", sources[0], "--saved")
    make_run([*sources, "--rounds", str(rounds)], out)
    return out


def _exported(form: Format, forward: Path, backward: Mapping[str, Path]) -> str:
    """Export a package, and return the last line of its own tests."""
    out = _RUNS / form
    how = ("--inside", _WHOLE) if form is Format.torch else ("--no-measure",)
    _export(form, out, forward, backward, "--everywhere", *how)
    place = placed(out, form)
    tests = f"{sys.executable} -W ignore -m pytest -q -p no:cacheprovider --pyargs {_NAME}".split(" ")
    done = subprocess.run(tests, cwd=place, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1]
    log(f"{form}: {last}")
    if done.returncode:
        raise SystemExit(done.stdout)
    return re.sub(r" in .*", "", last)


def _export(form: Format, out: Path, forward: Path, backward: Mapping[str, Path], *how: str) -> None:
    shutil.rmtree(out, ignore_errors=True)
    words = ["export", str(forward), "--all", "--format", form, "--name", _NAME, "--out", str(out)]
    words += ["--licence", "Apache-2.0", *how]
    for kernel, layer in _LAYERS[form].items():
        words += ["--layer", f"{kernel}:{layer}"]
    for kernel, run in backward.items():
        words += ["--backward", f"{kernel}:{run}"]
    kernelwright(*words)


def _output(script: str, form: Format, *words: str) -> str:
    """Run a script with a package, and return the command and its output."""
    command = [str(PUBLISHED / f"{script}.py"), _NAME, *words]
    place = {**os.environ, "PYTHONPATH": str(_RUNS / form)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command], env=place, stdout=subprocess.PIPE, text=True, check=True
    )
    log(done.stdout)
    return f"PYTHONPATH={_RUNS / form} python {' '.join(command)}\n\n{done.stdout}"


def _page(
    rounds: int,
    metadata: Mapping[str, Any],
    faster: Mapping[str, Any],
    ways: Mapping[str, str],
    tested: Mapping[Format, str],
    served: str,
    trained: Sequence[str],
) -> str:
    header = ("kernel", "verified over eager", "backward", *next(iter(metadata["measured"].values())))
    rows = []
    for kernel in metadata["kernels"]:
        measured = metadata["measured"][kernel["name"]].values()
        cells = (kernel["name"], kernel["provenance"]["speedup"], ways[kernel["name"]])
        rows.append((*cells, *map(_cell, measured)))
    whole = (("them everywhere", metadata["measured_inside"]), ("them where they are faster", faster))
    for what, inside in whole:
        whole = inside["the whole"].values()
        rows.append((f"[the Llama](llama.py) with {what}", "", "", *map(_cell, whole)))
    machine = Fingerprint.model_validate(
        metadata["kernels"][0]["provenance"]["evaluation"]["target"]["fingerprint"]
    )
    return "\n".join(
        (
            "# Kernels for training",
            "",
            made_by(f"kernels --rounds {rounds}", machine),
            "",
            "`tasks/` has the references, `cpu/` their kernels, forward and backward, written by the",
            "builtin coder and verified. Exported in every format, the package's own tests say:",
            "",
            *(f"- `{form}`: {said}" for form, said in tested.items()),
            "",
            "Medians in µs of reference / drop-in, and their ratio, in the package's wrapper, in a process",
            "that keeps the memory it frees.",
            "",
            *table(header, rows),
            "",
            "Calls of the Llama's layers that they compute, forward and backward, at eight sizes of a batch:",
            "",
            textwrap.indent(served, "    "),
            "Training with them and without, from the same seed: the losses, and how far they are apart:",
            "",
            "![loss curves](curves.svg)",
            "",
            *(textwrap.indent(said, "    ") for said in trained),
        )
    )


def _cell(row: Mapping[str, float]) -> str:
    return f"{row['reference_us']:.0f} / {row['drop_in_us']:.0f}, {formatting.ratio(row['speedup'])}"
