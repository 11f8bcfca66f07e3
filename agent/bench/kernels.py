"""The kernels of results/published/kernels: found by the builtin coder, exported in every format, tested."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.agent.bench.publishing import in_words, log
from kernelwright.kernelbench.records import Fingerprint
from kernelwright.results import formatting
from kernelwright.results.dropin.format import Format
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.store.folder import write_atomically

PUBLISHED = Path("results") / "published" / "kernels"
_RUNS = Path("runs") / "bench-kernels"
_FASTER = _RUNS / "faster"
_WHOLE = str(PUBLISHED / "llama.py")
_NAME = "fused_kernels"
_LEARNT = ("docs/LOG.md", "--steps", "300", "--picture", str(PUBLISHED / "curves.svg"))
# What they stand in for, in each format; the others are functions to be called.
_LLAMA = {"rms_norm": "LlamaRMSNorm", "swiglu": "LlamaMLP", "layer_norm": "LayerNorm"}
_LAYERS: Mapping[Format, Mapping[str, str]] = {
    Format.torch: _LLAMA,
    Format.hf: _LLAMA,
    Format.torchtitan: {"rms_norm": "torchtitan.models.common.nn_modules.RMSNorm"},
    Format.megatron: {"layer_norm": "megatron.core.transformer.torch_norm.WrappedTorchNorm"},
}

# Whose gradients take more of the forward than its outputs.
_SAVING = ("gated_linear_attention_chunk", "gelu_linear", "layer_norm", "swiglu")


def kernels(rounds: int = 6) -> None:
    """Run, export and test them, and train with them; what is in runs/bench-kernels is not measured again."""
    tasks = sorted((PUBLISHED / "tasks").glob("*.py"))
    forward = _RUNS / "forward"
    _run([str(task) for task in tasks], forward, rounds)
    backward = {task.stem: _gradient(task, rounds) for task in tasks}
    tested = {form: _exported(form, forward, backward) for form in Format}
    trained = [_trained("llama", Format.torch, *_LEARNT), _trained("torchtitan", Format.torchtitan)]
    metadata = _metadata(_RUNS / Format.torch)
    _export(Format.torch, _FASTER, forward, backward, "--inside", _WHOLE, "--where-faster")
    for run in (forward, *backward.values()):
        for winner in Winner.all_of(run):
            write_atomically(PUBLISHED / "cpu" / f"{winner.name}.py", winner.candidate.source)
    ways = {name: _way(run) for name, run in backward.items()}
    faster = _metadata(_FASTER)["measured_inside"]
    write_atomically(PUBLISHED / "README.md", _table(rounds, metadata, faster, ways, tested, trained))


def _metadata(package: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((package / _NAME / "metadata.json").read_text())
    return found


def _way(run: Path) -> str:
    found = {winner.name: winner.candidate.language for winner in Winner.all_of(run)}
    saved = ", of what the forward saves" if len(found) > 1 else ""
    own = found[run.name] != "torch"
    return f"{'kernel' if own else 'torch’s, for no kernel was faster'}{saved}"


def _run(words: Sequence[str], out: Path, rounds: int) -> None:
    if (out / "run.db").exists():
        _kernelwright("run", "--resume", str(out))
    else:
        _kernelwright("run", *words, "--rounds", str(rounds), "--out", str(out))


def _gradient(task: Path, rounds: int) -> Path:
    """The run of its gradient, a task of its own, and of the forward that saves what that takes."""
    out = _RUNS / f"{task.stem}_gradient"
    sources = [f"{out}.py"]
    if task.stem in _SAVING:
        sources.append(str(_RUNS / f"{task.stem}_training.py"))
        _kernelwright("gradient", str(task), "--out", sources[0], "--forward", sources[1])
    else:
        _kernelwright("gradient", str(task), "--out", sources[0], "--saved")
    _run(sources, out, rounds)
    return out


def _exported(form: Format, forward: Path, backward: Mapping[str, Path]) -> str:
    """What the package's own tests say."""
    out = _RUNS / form
    how = ("--inside", _WHOLE) if form is Format.torch else ("--no-measure",)
    _export(form, out, forward, backward, *how)
    place = out / "build" / "torch-cpu" if form is Format.hf else out
    tests = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        _NAME,
    ]
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
    _kernelwright(*words)


def _trained(what: str, form: Format, *words: str) -> str:
    """The command that trains with the package, and what it says."""
    command = [str(PUBLISHED / f"train_{what}.py"), _NAME, *words]
    place = {**os.environ, "PYTHONPATH": str(_RUNS / form)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command], env=place, stdout=subprocess.PIPE, text=True, check=True
    )
    log(done.stdout)
    return f"PYTHONPATH={_RUNS / form} python {' '.join(command)}\n\n{done.stdout}"


def _kernelwright(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "kernelwright", *words], check=True)


def _table(
    rounds: int,
    metadata: Mapping[str, Any],
    faster: Mapping[str, Any],
    ways: Mapping[str, str],
    tested: Mapping[Format, str],
    trained: Sequence[str],
) -> str:
    heads = ("kernel", "verified over eager", "backward", *next(iter(metadata["measured"].values())))
    rows = [heads, ("---",) * len(heads)]
    for kernel in metadata["kernels"]:
        found = metadata["measured"][kernel["name"]].values()
        rows.append(
            (kernel["name"], kernel["provenance"]["speedup"], ways[kernel["name"]], *map(_cell, found))
        )
    for what, inside in (("them", metadata["measured_inside"]), ("`--where-faster`", faster)):
        whole = inside["the whole"].values()
        rows.append((f"[the Llama](llama.py) with {what}", "", "", *map(_cell, whole)))
    mark = Fingerprint.model_validate(
        metadata["kernels"][0]["provenance"]["evaluation"]["target"]["fingerprint"]
    )
    return "\n".join(
        (
            "# Kernels for training",
            "",
            f"Made by `python -m kernelwright.agent.bench kernels --rounds {rounds}` on {in_words(mark)}.",
            "",
            "`tasks/` has the references, `cpu/` their kernels, forward and backward, written by the",
            "builtin coder and verified. Exported in every format, the package's own tests say:",
            "",
            *(f"- `{form}`: {said}" for form, said in tested.items()),
            "",
            "Medians in µs of reference / drop-in, and their ratio, in the package's wrapper, in a process",
            "that keeps the memory it frees.",
            "",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            "Training with them and without, from the same seed: the losses, and how far they are apart:",
            "",
            "![loss curves](curves.svg)",
            "",
            *(textwrap.indent(said, "    ") for said in trained),
        )
    )


def _cell(row: Mapping[str, float]) -> str:
    return f"{row['reference_us']:.0f} / {row['drop_in_us']:.0f}, {formatting.ratio(row['speedup'])}"
