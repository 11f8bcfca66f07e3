"""`kernelwright train curate` and `kernelwright train verl`."""

import json
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from kernelwright.kernelbench import sources
from kernelwright.kernelbench.cli import Json, KernelbenchDir
from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.store.database import RunDatabase


def curate(
    runs: Annotated[list[str], typer.Argument(help="Run folders or database URLs.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="New folder for the data set.")],
    k: Annotated[int, typer.Option(help="Number of distinct kernels to keep per task at most.")] = 2,
    evaluation_list: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Tasks to keep out of the data, with all similar ones: a list file, or a suite's name.",
        ),
    ] = None,
    held_out_share: Annotated[
        float, typer.Option(help="Share of the tasks to hold out, by whole families of operators.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed for the choice of held-out tasks.")] = 0,
    kernelbench_dir: KernelbenchDir = None,
    as_json: Json = False,
) -> None:
    """Make a data set from recorded runs: SFT samples, preference pairs, ranked lists and tasks.

    Writes DIR/README.md (a Hugging Face card), DIR/DATASHEET.md and parquet files for load_dataset("DIR").
    """
    from kernelwright.rl_training.curation.curate import Settings, write
    from kernelwright.rl_training.curation.curate import curate as curated_of

    if k < 1:
        raise UsageError(f"invalid --k {k}", "use 1 or more")
    _require_share(held_out_share)
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
        console.print("No --evaluation-list was given, so contamination was not checked.", markup=False)
    console.print(f"Written to {out}; see its DATASHEET.md for details.", markup=False, soft_wrap=True)


def verl(
    sources: Annotated[
        list[str],
        typer.Argument(help="A data set of `train curate`, or run folders.", metavar="SOURCE..."),
    ],
    out: Annotated[Path, typer.Option(help="New folder, at a path that all nodes share.")],
    model: Annotated[str, typer.Option(help="The policy: a name on the Hugging Face Hub, or a folder.")],
    algorithm: Annotated[
        Literal["grpo", "rloo", "remax", "dapo"], typer.Option(help="Estimator of advantages.")
    ] = "grpo",
    reward: Annotated[
        str, typer.Option(metavar="SCHEME", help="A reward scheme's name, or its .toml or .json file.")
    ] = "log-speedup",
    turns: Annotated[
        int, typer.Option(min=1, help="Number of replies per rollout, each a separate sample.")
    ] = 1,
    tasks_per_step: Annotated[
        int | None,
        typer.Option(min=1, help="Number of tasks per training step. Default: 8, or all if there are fewer."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Number of rollouts per task and step. Default: 16; for remax 1."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 100,
    fully_async: Annotated[
        bool,
        typer.Option("--fully-async", help="Generate rollouts on separate GPUs while weights are updated."),
    ] = False,
    partial_rollouts: Annotated[
        bool,
        typer.Option(
            "--partial-rollouts",
            help="Interrupt long rollouts and continue them in the next step.",
        ),
    ] = False,
    staleness: Annotated[
        int | None,
        typer.Option(
            help="Steps a sample may lag behind; for --fully-async or --partial-rollouts. Default: 2."
        ),
    ] = None,
    engine: Annotated[
        Literal["vllm", "sglang"], typer.Option(help="Inference engine for rollouts.")
    ] = "vllm",
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes with GPUs.")] = 1,
    gpus: Annotated[int, typer.Option(min=1, help="Number of GPUs per node.")] = 8,
    rollout_nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of further nodes for rollouts, with --fully-async. Default: 1."),
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Length limit of prompts in tokens; longer ones are left out.")
    ] = 8192,
    response_tokens: Annotated[int, typer.Option(min=1, help="Length limit of a reply in tokens.")] = 8192,
    held_out_share: Annotated[
        float,
        typer.Option(help="Share of the runs' tasks to hold out, by families; data sets are already split."),
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed for the choice of held-out tasks.")] = 0,
    as_json: Json = False,
) -> None:
    """Write the files that training on a cluster with verl needs: data, reward, agent loop, launch command.

    docs/verl.md explains how to start it. Nothing is trained here.
    """
    from kernelwright.rl_training.cluster.folder import write as written_of
    from kernelwright.rl_training.cluster.plan import TASKS, Plan
    from kernelwright.rl_training.rewards.scheme import scheme_of
    from kernelwright.rl_training.tasks import tasks_from

    _require_share(held_out_share)
    scheme = scheme_of(reward)
    tasks = tasks_from(sources, held_out_share, seed)
    plan = Plan(
        algorithm=algorithm,
        model=model,
        engine=engine,
        nodes=nodes,
        gpus=gpus,
        rollout_nodes=rollout_nodes,
        tasks=tasks_per_step or min(TASKS, len(tasks.train)),
        samples=samples,
        turns=turns,
        fully_async=fully_async,
        partial_rollouts=partial_rollouts,
        staleness=staleness,
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        steps=steps,
    )
    files = written_of(out, tasks, plan, scheme, shlex.join(["kernelwright", *sys.argv[1:]]))
    counts = {"train": len(tasks.train), "test": len(tasks.test)}
    if as_json:
        print(json.dumps({"schema": 1, "folder": str(out), "tasks": counts, "files": files}))
        return
    console = Console(highlight=False)
    console.print(f"{counts['train']} tasks for training, {counts['test']} held out", markup=False)
    console.print(f"Written to {out}; see its README.md for how to start it.", markup=False, soft_wrap=True)


def _require_share(held_out_share: float) -> None:
    if not 0 <= held_out_share < 1:
        raise UsageError(f"invalid --held-out-share {held_out_share:g}", "use a number from 0 to below 1")
