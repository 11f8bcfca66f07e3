"""Whole models with the kernels that `kernelwright optimize` writes for their parts.

    python -m benchmarks models
    python -m benchmarks models --only bfloat16

Optimizes a model in each dtype in one command, and counts the calls that the package's kernels compute at
eight sizes. Runs in runs/bench-models go on where they are; what is left out keeps its section of the page.
Machine: CPU, quiet, 16 GiB, with the `dev` extra. Time: 80 minutes a dtype. Writes models/README.md.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.publishing import made_by
from benchmarks.runs import kernelwright
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.store.folder import write_atomically

PUBLISHED = Path("results") / "published" / "models"
_RUNS = Path("runs") / "bench-models"
_LLAMA = (
    *("hf:LlamaForCausalLM", "--train", "--rounds", "2", "--effort", "quick", "--baseline", "eager"),
    *("--init", "hidden_size=512", "--init", "intermediate_size=1408", "--init", "num_hidden_layers=4"),
    *("--init", "num_attention_heads=8", "--init", "num_key_value_heads=2", "--init", "vocab_size=32000"),
    *("--input", "input_ids=batch,length:int64<32000", "--input", "labels=batch,length:int64<32000"),
    *("--size", "batch=4,length=128", "--size", "batch=2,length=200", "--size", "batch=8,length=64,hidden"),
)
MODELS = {  # by a name and a dtype
    ("llama_fp32", "float32"): _LLAMA,
    ("llama_bf16", "bfloat16"): (*_LLAMA, "--init", "dtype=bfloat16"),
}


def run(
    only: Annotated[str, typer.Option(help="The dtype of the model; all by default.")] = "",
) -> None:
    page = PUBLISHED / "README.md"
    sections = _sections(page.read_text()) if page.exists() else {}
    for (name, dtype), words in MODELS.items():
        if only not in ("", dtype):
            continue
        out = _RUNS / name
        kernelwright("optimize", *words, "--out", str(out))
        machine = next(iter(Winner.all_of(out / "run"))).evaluation.target.fingerprint
        command = " ".join(map(_quoted, words))
        text = f"{_report(out)}\n{_reached(out, dtype)}\n    kernelwright optimize {command}"
        heading, _, rest = text.partition("\n")
        title = heading.replace(": a step", f" in {dtype}: a step")
        sections[title] = f"\n{made_by('models', machine)}\n{rest}".rstrip()
        found = (f"{title}\n{body}" for title, body in sorted(sections.items()))
        write_atomically(page, "# Models with their kernels\n\n" + "\n\n".join(found) + "\n")


def _sections(page: str) -> dict[str, str]:
    """Return the sections of a page by their headings."""
    found = re.findall(r"^(## .*)\n((?:(?!## ).*\n?)*)", page, flags=re.MULTILINE)
    return {heading: body.rstrip() for heading, body in found}


def _report(out: Path) -> str:
    """Return the report without what is to be installed, which is not published."""
    text = (out / "report.md").read_text()
    return re.sub(r"\nThe kernels that are kept: .*?\n", "", text).replace("# ", "## ", 1)


def _reached(out: Path, dtype: str) -> str:
    """Return how many calls kernels compute at eight sizes, in a process of its own."""
    packages = sorted((out / "package").glob("*/metadata.json"))
    if not packages:
        return ""
    package = packages[0].parent
    command = [sys.executable, "-W", "ignore", str(PUBLISHED / "shapes.py"), str(package), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    sizes = ", ".join(f"{batch} x {length}" for batch, length in found["sizes"])
    return f"Kernels compute {found['reached']} of {found['calls']} calls at eight sizes ({sizes}).\n"


def _quoted(word: str) -> str:
    return f"'{word}'" if "<" in word else word
