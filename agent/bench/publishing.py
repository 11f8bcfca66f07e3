"""Where the bench's tables go, and what its parts share."""

import sys
from collections.abc import Sequence
from pathlib import Path

from kernelwright.kernelbench.records import Candidate, Fingerprint, Task
from kernelwright.results.store.folder import write_atomically

PUBLISHED = Path("results") / "published" / "cpu"
AA_TASKS = (
    "builtin:level1/softmax",
    "builtin:level1/gelu_tanh",
    "builtin:level1/matmul_square",
    "builtin:level2/linear_gelu_layer_norm",
    "builtin:level3/mlp",
)


def suite_run(level: int) -> Path:
    """The folder of the run that `suite` makes of a level."""
    return Path("runs") / f"bench-suite-level{level}"


def itself(task: Task) -> Candidate:
    """The reference as its own candidate."""
    source = task.source.replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")
    return Candidate(source=source, language="torch", author="reference")


def in_words(mark: Fingerprint) -> str:
    return (
        f"{mark.chip}, {mark.threads} threads, {mark.last_level_cache_bytes >> 20} MiB last-level cache, "
        f"torch {mark.torch}, Python {mark.python}, {mark.compiler}"
    )


def publish(
    name: str, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], mark: Fingerprint
) -> None:
    """Write a table with what it depends on."""
    made = f"Made by `python -m kernelwright.agent.bench {name.split('-')[0]}` on {in_words(mark)}."
    lines = [f"# {title}", "", made, ""]
    lines += ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    write_atomically(PUBLISHED / f"{name}.md", "\n".join(lines) + "\n")
    log("\n".join(lines))


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
