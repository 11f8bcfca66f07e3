"""`kernelwright train environment`."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field
from rich.console import Console

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.options import Section, command
from kernelwright.rl_training.cluster.options import DataOptions


class RewardOptions(Section):
    """Rewards, and where they come from."""

    server: Annotated[
        str, typer.Option(metavar="URL", help="Server of evaluations, which a trainer's processes can reach.")
    ] = "http://127.0.0.1:8900"
    reward: Annotated[
        str, typer.Option(metavar="SCHEME", help="Reward scheme: a name, or a .toml or .json file.")
    ] = "log-speedup"
    effort: Annotated[
        Literal["quick", "full", "thorough"] | None,
        typer.Option(help="Effort of a measurement.", show_default="quick"),
    ] = None
    turns: Annotated[
        int, Field(ge=1, le=64), typer.Option(help="Replies to a task, where a trainer takes several.")
    ] = 1


class EnvironmentOutputOptions(Section):
    """Folder to write."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the package.")]
    as_json: Json = False


class EnvironmentConfig(Section):
    """Options of `kernelwright train environment`."""

    data: DataOptions
    rewards: RewardOptions = RewardOptions()
    output: EnvironmentOutputOptions


@command(EnvironmentConfig)
def environment(config: EnvironmentConfig) -> None:
    """Write tasks and rewards as a package for verifiers, OpenEnv, TRL, slime, SkyRL, OpenRLHF and others.

    It asks `kernelwright serve evaluator`; docs/trainers.md has the lines for each trainer.
    """
    from kernelwright.rl_training.other_trainers.folder import EnvironmentSettings, scheme_sent
    from kernelwright.rl_training.other_trainers.folder import write as written_of
    from kernelwright.rl_training.rewards.scheme import scheme_of
    from kernelwright.rl_training.tasks import tasks_from

    data, rewards, out = config.data, config.rewards, config.output.out
    if not rewards.server.startswith(("http://", "https://")):
        raise UsageError(f"{rewards.server} is no address of a server", "give one such as http://gpu7:8900")
    settings = EnvironmentSettings(
        server=rewards.server,
        scheme=scheme_sent(scheme_of(rewards.reward)),
        turns=rewards.turns,
        effort=rewards.effort,
    )
    tasks = tasks_from(data.sources, data.held_out_share, data.seed)
    files = written_of(out, tasks, settings, shlex.join(["kernelwright", *sys.argv[1:]]))
    counts = {"train": len(tasks.train), "test": len(tasks.test)}
    if config.output.as_json:
        print(json.dumps({"schema": 1, "folder": str(out), "tasks": counts, "files": files}))
        return
    console = Console(highlight=False)
    console.print(f"{counts['train']} tasks for training, {counts['test']} held out", markup=False)
    console.print(f"Written to {out}. Install it beside the trainer, and start the server:", markup=False)
    console.print(f"    pip install -e {out}", markup=False, soft_wrap=True)
    console.print(f"    kernelwright serve evaluator --target {tasks.device}", markup=False, soft_wrap=True)
