"""`kernelwright train demo`."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field
from rich.console import Console
from rich.markdown import Markdown

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.options import Section, command

if TYPE_CHECKING:
    from kernelwright.kernelbench.records import Record
    from kernelwright.rl_training.demo.settings import DemoSettings
    from kernelwright.rl_training.demo.wide.settings import WideSettings
    from kernelwright.rl_training.tracking.run import TrainingFolder


class DemoOptions(Section):
    """Options of the demonstration."""

    space: Annotated[
        Literal["files", "wide"],
        typer.Option(help="Replies of the policy: whole C++ files, or schedules of all knobs."),
    ] = "files"
    seeds: Annotated[
        int, Field(ge=1), typer.Option(help="Number of policies, each initialized from another seed.")
    ] = 3
    short: Annotated[
        bool, typer.Option("--short", help="Run every step in two minutes, without learning anything.")
    ] = False


class DemoOutputOptions(Section):
    """Destination of results."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder; a run in it is resumed.")]
    as_json: Json = False


class DemoConfig(Section):
    demo: DemoOptions = DemoOptions()
    output: DemoOutputOptions


@command(DemoConfig)
def demo(config: DemoConfig) -> None:
    """Train a small policy from scratch on this machine: tasks, SFT, RL with measured speedups, and a table.

    A small transformer learns to write C++ kernels. With --space wide it chooses the builtin coder's
    schedules instead, and is compared with searches on tasks that it has never seen. Takes tens of minutes a
    seed on two cores; give the same command again to resume after a kill. Writes DIR/table.md and
    DIR/curves.svg; `kernelwright report DIR/seed-0/rl` shows a training.
    """
    from kernelwright.rl_training.trainers.policy import quiet, require

    require()
    import torch

    from kernelwright.rl_training.tracking.run import tracked

    quiet()
    torch.set_num_threads(1)  # so small a model is slower with more
    began, console = time.monotonic(), Console(stderr=True, highlight=False)

    def say(what: str) -> None:
        minutes, seconds = divmod(round(time.monotonic() - began), 60)
        console.print(f"{minutes:3}:{seconds:02} {what}", markup=False, soft_wrap=True)

    out = config.output.out
    settings, run = (_wide if config.demo.space == "wide" else _files)(config.demo, say)
    seeds = {"data": settings.data_seed, "first": settings.first_seed}
    with tracked(out, "demo", settings, seeds, {}) as folder:
        found, tables = run(folder)
    if config.output.as_json:
        records = [each.model_dump(mode="json") for each in found]
        print(json.dumps({"schema": 1, "folder": str(out), _KEYS[config.demo.space]: records}))
        return
    Console().print(Markdown("\n".join(tables)))
    Console(highlight=False).print(
        f"Written to {out}: table.md, curves.svg, the policies in seed-*/rl/policy.",
        markup=False,
        soft_wrap=True,
    )


_KEYS = {"files": "seeds", "wide": "results"}  # of --json
Run = Callable[["TrainingFolder"], "tuple[Sequence[Record], list[str]]"]  # what was found, and its tables


def _files(options: DemoOptions, say: Callable[[str], None]) -> "tuple[DemoSettings, Run]":
    from kernelwright.rl_training.demo.data import tasks_of
    from kernelwright.rl_training.demo.demo import Demo
    from kernelwright.rl_training.demo.report import table, write
    from kernelwright.rl_training.demo.settings import SHORT, DemoSettings

    settings = SHORT if options.short else DemoSettings(seeds=options.seeds)

    def run(folder: "TrainingFolder") -> "tuple[Sequence[Record], list[str]]":
        found = Demo(settings, folder.path, say).run()
        write(folder, found, settings, len(tasks_of(settings, folder.path).known))
        return found, table(found, settings)

    return settings, run


def _wide(options: DemoOptions, say: Callable[[str], None]) -> "tuple[WideSettings, Run]":
    from kernelwright.rl_training.demo.wide.demo import WideDemo
    from kernelwright.rl_training.demo.wide.report import write
    from kernelwright.rl_training.demo.wide.settings import SHORT_WIDE, WideSettings

    settings = SHORT_WIDE if options.short else WideSettings(seeds=options.seeds)

    def run(folder: "TrainingFolder") -> "tuple[Sequence[Record], list[str]]":
        claim, results = WideDemo(settings, folder.path, say).run()
        return results, write(folder, claim, results)

    return settings, run
