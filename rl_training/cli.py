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
from kernelwright.kernelbench.options import command
from kernelwright.results.store.database import RunDatabase
from kernelwright.rl_training.cluster.options import VerlConfig


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
    held_out_by: Annotated[
        Literal["combination", "operator"],
        typer.Option(help="Property that training never sees: combinations of operators, or operators."),
    ] = "combination",
    seed: Annotated[int, typer.Option(help="Seed for the choice of held-out tasks.")] = 0,
    compare: Annotated[
        Literal["text", "computations"],
        typer.Option(help="Comparison of tasks: their text, or what they compute, too, which runs them."),
    ] = "computations",
    kernelbench_dir: KernelbenchDir = None,
    as_json: Json = False,
) -> None:
    """Make a data set from recorded runs: SFT samples, preference pairs, ranked lists and tasks.

    Writes DIR/README.md (a Hugging Face card), DIR/DATASHEET.md and parquet files for load_dataset("DIR").
    """
    from kernelwright.kernelbench.evaluator import Referee
    from kernelwright.kernelbench.machine import cache_folder
    from kernelwright.rl_training.curation.computations import Computations
    from kernelwright.rl_training.curation.curate import CurationSettings, write
    from kernelwright.rl_training.curation.curate import curate as curated_of

    if k < 1:
        raise UsageError(f"invalid --k {k}", "use 1 or more")
    _require_share(held_out_share)
    evaluation = (
        sources.resolve([], suite=evaluation_list, kernelbench_dir=kernelbench_dir) if evaluation_list else []
    )
    settings = CurationSettings(k=k, held_out_share=held_out_share, held_out_by=held_out_by, seed=seed)
    with ExitStack() as stack:
        opened = [stack.enter_context(RunDatabase.open(run, read_only=True)) for run in runs]
        computations = None
        if compare == "computations" and (evaluation or held_out_share > 0):
            referee = stack.enter_context(Referee.start(cache=cache_folder()))
            computations = Computations(referee.sessions.pool)
        curated = curated_of(opened, evaluation, settings, computations)
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


@command(VerlConfig)
def verl(config: VerlConfig) -> None:
    """Write the files that training on a cluster with verl needs: data, reward, agent loop, launch command.

    docs/verl.md explains how to start it. Nothing is trained here.
    """
    from kernelwright.rl_training.cluster.folder import write as written_of
    from kernelwright.rl_training.cluster.plan import TASKS, ClusterPlan
    from kernelwright.rl_training.rewards.scheme import scheme_of
    from kernelwright.rl_training.tasks import tasks_from

    data, rollouts, cluster, training = config.data, config.rollouts, config.cluster, config.training
    scheme = scheme_of(training.reward)
    tasks = tasks_from(data.sources, data.held_out_share, data.seed)
    plan = ClusterPlan(
        algorithm=training.algorithm,
        model=training.model,
        engine=rollouts.engine,
        nodes=cluster.nodes,
        gpus=cluster.gpus,
        rollout_nodes=cluster.rollout_nodes,
        tasks=training.tasks_per_step or min(TASKS, len(tasks.train)),
        samples=rollouts.samples,
        turns=rollouts.turns,
        fully_async=rollouts.fully_async,
        partial_rollouts=rollouts.partial_rollouts,
        staleness=rollouts.staleness,
        prompt_tokens=rollouts.prompt_tokens,
        response_tokens=rollouts.response_tokens,
        steps=training.steps,
    )
    out = config.output.out
    files = written_of(out, tasks, plan, scheme, shlex.join(["kernelwright", *sys.argv[1:]]))
    counts = {"train": len(tasks.train), "test": len(tasks.test)}
    if config.output.as_json:
        print(json.dumps({"schema": 1, "folder": str(out), "tasks": counts, "files": files}))
        return
    console = Console(highlight=False)
    console.print(f"{counts['train']} tasks for training, {counts['test']} held out", markup=False)
    console.print(f"Written to {out}; see its README.md for how to start it.", markup=False, soft_wrap=True)


def _require_share(held_out_share: float) -> None:
    if not 0 <= held_out_share < 1:
        raise UsageError(f"invalid --held-out-share {held_out_share:g}", "use a number from 0 to below 1")
