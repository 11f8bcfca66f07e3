"""Options of `kernelwright train verl`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.options import Section


class DataOptions(Section):
    """Tasks of the training."""

    sources: Annotated[
        tuple[str, ...],
        Field(min_length=1),
        typer.Argument(help="Data set of `train curate`, or run folders.", metavar="SOURCE"),
    ]
    held_out_share: Annotated[
        float, Field(ge=0, lt=1), typer.Option(help="Share of the runs' tasks to hold out, by families.")
    ] = 0.2
    seed: Annotated[int, typer.Option(help="Seed for the choice of held-out tasks.")] = 0


class TrainingOptions(Section):
    """Policy and updates."""

    model: Annotated[str, typer.Option(help="Policy: a name on the Hugging Face Hub, or a folder.")]
    algorithm: Annotated[
        Literal["grpo", "rloo", "remax", "dapo"], typer.Option(help="Estimator of advantages.")
    ] = "grpo"
    reward: Annotated[
        str, typer.Option(metavar="SCHEME", help="Reward scheme: a name, or a .toml or .json file.")
    ] = "log-speedup"
    tasks_per_step: Annotated[
        int | None, Field(ge=1), typer.Option(help="Tasks per training step.", show_default="8, or all")
    ] = None
    steps: Annotated[int, Field(ge=1), typer.Option(help="Training steps.")] = 100


class ClusterRolloutOptions(Section):
    """Replies of the policy to tasks."""

    turns: Annotated[int, Field(ge=1), typer.Option(help="Replies per rollout, each a separate sample.")] = 1
    samples: Annotated[
        int | None,
        Field(ge=1),
        typer.Option(help="Rollouts per task and step.", show_default="16; for remax 1"),
    ] = None
    fully_async: Annotated[
        bool,
        typer.Option("--fully-async", help="Generate on separate GPUs while weights are updated."),
    ] = False
    partial_rollouts: Annotated[
        bool,
        typer.Option(
            "--partial-rollouts", help="Interrupt long rollouts and continue them in the next step."
        ),
    ] = False
    staleness: Annotated[
        int | None,
        typer.Option(
            help="Steps a sample may lag behind, with --fully-async or --partial-rollouts.", show_default="2"
        ),
    ] = None
    engine: Annotated[Literal["vllm", "sglang"], typer.Option(help="Inference engine.")] = "vllm"
    prompt_tokens: Annotated[
        int, Field(ge=1), typer.Option(help="Tokens of a prompt; longer ones are left out.")
    ] = 8192
    response_tokens: Annotated[int, Field(ge=1), typer.Option(help="Tokens of a reply.")] = 8192


class ClusterOptions(Section):
    """Machines."""

    nodes: Annotated[int, Field(ge=1), typer.Option(help="Nodes with GPUs.")] = 1
    gpus: Annotated[int, Field(ge=1), typer.Option(help="GPUs per node.")] = 8
    rollout_nodes: Annotated[
        int | None,
        Field(ge=1),
        typer.Option(help="Further nodes for rollouts, with --fully-async.", show_default="1"),
    ] = None


class ClusterOutputOptions(Section):
    """Folder to write."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder, at a path that all nodes share.")]
    as_json: Json = False


class VerlConfig(Section):
    data: DataOptions
    training: TrainingOptions
    rollouts: ClusterRolloutOptions = ClusterRolloutOptions()
    cluster: ClusterOptions = ClusterOptions()
    output: ClusterOutputOptions
