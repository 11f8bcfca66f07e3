"""The commands `train …`."""

import json
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kernelbench import sources
from kernelbench.cli import Json, KernelbenchDir
from kernelbench.errors import UsageError
from results.database import RunDatabase

app = typer.Typer()


@app.callback()
def train() -> None:
    """Learn from what was measured."""


@app.command()
def curate(
    runs: Annotated[list[str], typer.Argument(help="Run folders or database URLs.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="A new folder for the data set.")],
    k: Annotated[int, typer.Option(help="Distinct kernels a task at most.")] = 2,
    evaluation_list: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Tasks that must not be in the data, nor any like them: a list file, or a suite's name.",
        ),
    ] = None,
    held_out_share: Annotated[
        float, typer.Option(help="Of the tasks, by whole families of operators.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Of what is held out.")] = 0,
    kernelbench_dir: KernelbenchDir = None,
    as_json: Json = False,
) -> None:
    """Make a data set of what runs have tried: SFT samples, preference pairs, ranked lists and tasks.

    Writes DIR/README.md (a Hugging Face card), DIR/DATASHEET.md and parquet files for load_dataset("DIR").
    """
    from rl_training.curation.curate import Settings, write
    from rl_training.curation.curate import curate as curated_of

    if k < 1:
        raise UsageError(f"--k {k} keeps nothing", "give at least 1")
    if not 0 <= held_out_share < 1:
        raise UsageError(f"--held-out-share {held_out_share:g} is no share", "give 0, or a number below 1")
    evaluation = (
        sources.resolve([], suite=evaluation_list, kernelbench_dir=kernelbench_dir) if evaluation_list else []
    )
    settings = Settings(k=k, held_out_share=held_out_share, seed=seed)
    with ExitStack() as stack:
        opened = [stack.enter_context(RunDatabase.open(run, read_only=True)) for run in runs]
        curated = curated_of(opened, evaluation, settings)
        written = write(curated, out, shlex.join(["kernelwright", *sys.argv[1:]]))
    if as_json:
        print(json.dumps(written))
        return
    console = Console(highlight=False)
    rows = written["rows"]
    assert isinstance(rows, dict)
    for config, counts in rows.items():
        console.print(
            f"{config:12} {counts['train']:5} for training {counts['test']:5} held out", markup=False
        )
    for reason, count in curated.dropped.most_common():
        console.print(f"  {count:5} left out: {reason}", markup=False)
    if not evaluation:
        console.print("No --evaluation-list was given: nothing was checked for contamination.", markup=False)
    console.print(f"Written to {out}; DATASHEET.md there says more.", markup=False, soft_wrap=True)
