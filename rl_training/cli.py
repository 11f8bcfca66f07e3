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
    from kernelwright.rl_training.curation.curate import Settings, write
    from kernelwright.rl_training.curation.curate import curate as curated_of

    if k < 1:
        raise UsageError(f"--k {k} keeps nothing", "give at least 1")
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
        console.print("No --evaluation-list was given: nothing was checked for contamination.", markup=False)
    console.print(f"Written to {out}; DATASHEET.md there says more.", markup=False, soft_wrap=True)


def verl(
    sources: Annotated[
        list[str],
        typer.Argument(help="A data set of `train curate`, or run folders.", metavar="SOURCE..."),
    ],
    out: Annotated[Path, typer.Option(help="A new folder, at a path that all nodes have.")],
    model: Annotated[str, typer.Option(help="The policy: a name on the Hugging Face Hub, or a folder.")],
    algorithm: Annotated[
        Literal["grpo", "rloo", "remax", "dapo"], typer.Option(help="How advantages are estimated.")
    ] = "grpo",
    reward: Annotated[
        str, typer.Option(metavar="SCHEME", help="A reward scheme's name, or its .toml or .json file.")
    ] = "log-speedup",
    turns: Annotated[int, typer.Option(min=1, help="Replies of a rollout, each a sample of its own.")] = 1,
    tasks_per_step: Annotated[
        int | None, typer.Option(min=1, help="Default: 8, or as many as there are.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Rollouts of a task a step. Default: 16; for remax 1.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of training.")] = 100,
    fully_async: Annotated[
        bool, typer.Option("--fully-async", help="Rollouts go on while weights change, on GPUs of their own.")
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
        typer.Option(help="Steps that a sample may lag behind, with one of the last two. Default: 2."),
    ] = None,
    engine: Annotated[Literal["vllm", "sglang"], typer.Option(help="What generates.")] = "vllm",
    nodes: Annotated[int, typer.Option(min=1, help="With GPUs.")] = 1,
    gpus: Annotated[int, typer.Option(min=1, help="Of a node.")] = 8,
    rollout_nodes: Annotated[
        int | None, typer.Option(min=1, help="With --fully-async, beside --nodes. Default: 1.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer prompts are left out.")] = 8192,
    response_tokens: Annotated[int, typer.Option(min=1, help="Of one reply.")] = 8192,
    held_out_share: Annotated[
        float, typer.Option(help="Of runs' tasks, by whole families; a data set is split already.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Of what is held out.")] = 0,
    as_json: Json = False,
) -> None:
    """Write what training on a cluster with verl needs: data, reward, agent loop, launch command.

    docs/verl.md says how to start it. Nothing is trained here.
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
    console.print(f"Written to {out}; README.md there says how to start it.", markup=False, soft_wrap=True)


def _require_share(held_out_share: float) -> None:
    if not 0 <= held_out_share < 1:
        raise UsageError(f"--held-out-share {held_out_share:g} is no share", "give 0, or a number below 1")
