"""KernelBench's problems that fit on a GPU with 80 GB, by the evaluator's own calculation.

    KERNELBENCH_DIR=... python -m benchmarks fitting

Nothing runs on a GPU, and nothing of a problem's size is allocated. Machine: CPU, with a checkout of
KernelBench. Time: 10 minutes (estimate). Writes static/gpu-memory.md.
"""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.publishing import STATIC, log, made_by, table
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.fitting import GIB, fit_header, fit_row, fitting, usable_bytes
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.sources.checkout import VARIABLE
from kernelwright.results.store.folder import write_atomically

_COLUMNS = (
    ("call: in, out", "inputs and outputs of one call"),
    ("processes", "CUDA's and torch's own memory, of the oracle and three workers"),
    ("inputs", "of all slots, twice: the oracle's copy, and the candidates'"),
    ("outputs", "of a block, and temporaries of a call, for each worker"),
    ("weights", "for each worker"),
    ("reference", "the oracle's peak: models and results in float64, moved inputs, outputs to compare"),
)


def run(
    kernelbench_dir: Annotated[Path, typer.Option(envvar=VARIABLE, help="A KernelBench checkout.")],
    levels: Annotated[list[int] | None, typer.Argument(help="Levels; 1, 2 and 3 by default.")] = None,
    memory: Annotated[float, typer.Option(metavar="GB", help="Memory that the GPU is sold with.")] = 80,
) -> None:
    names = [f"kernelbench:{level}" for level in levels or (1, 2, 3)]
    tasks = sources.resolve(names, kernelbench_dir=kernelbench_dir)
    usable, rows, fit = usable_bytes(memory), [], 0
    with Referee.start(cache=cache_folder()) as evaluator:
        for found in fitting(evaluator.sessions, tasks, usable):
            rows.append(fit_row(found, usable))
            fit += found.fits
            log(" | ".join(rows[-1]))
        machine = evaluator.target.fingerprint
    lines = [
        f"# KernelBench's problems at their own sizes, on a GPU with {memory:g} GB",
        "",
        f"{made_by('fitting', machine)} Nothing here has run on a GPU. `kernelwright tasks --suite "
        f"kernelbench:1 --memory {memory:g}` prints the same.",
        "",
        f"{fit} of {len(rows)} fit in the {usable / GIB:.1f} GiB that programs get, by calculation, with "
        "eager and torch.compile beside the candidate. Sizes are in GiB; blocks have N `calls` and 2N, "
        "or one each.",
        "",
        *table(("column", "what it holds"), _COLUMNS),
        "",
        "Temporaries are those between eager's operators. What an operator takes inside itself (a "
        "convolution's workspace), and what Inductor takes to compile, is not counted.",
        "",
        "Where a call can be made in slices of its batch, samples are taken to be independent, so that "
        "float64 takes little memory beside results. The oracle makes sure of that by comparing values.",
        "",
        *table(fit_header(), rows),
        "",
    ]
    write_atomically(STATIC / "gpu-memory.md", "\n".join(lines))
