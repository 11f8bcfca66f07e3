"""`kernelwright train demo`."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field
from rich.console import Console
from rich.markdown import Markdown

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.options import Section, command


class DemoOptions(Section):
    """Options of the demonstration."""

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

    A small transformer learns to write C++ kernels. Takes tens of minutes on two cores; give the same command
    again to resume after a kill. Writes DIR/table.md and DIR/curves.svg; `kernelwright report DIR/seed-0/rl`
    shows a training.
    """
    from kernelwright.rl_training.trainers.policy import quiet, require

    require()
    import torch

    from kernelwright.rl_training.demo.data import tasks_of
    from kernelwright.rl_training.demo.demo import Demo
    from kernelwright.rl_training.demo.report import table, write
    from kernelwright.rl_training.demo.settings import SHORT, DemoSettings
    from kernelwright.rl_training.tracking.run import tracked

    quiet()
    torch.set_num_threads(1)  # so small a model is slower with more
    settings = SHORT if config.demo.short else DemoSettings(seeds=config.demo.seeds)
    began, console = time.monotonic(), Console(stderr=True, highlight=False)

    def say(what: str) -> None:
        minutes, seconds = divmod(round(time.monotonic() - began), 60)
        console.print(f"{minutes:3}:{seconds:02} {what}", markup=False, soft_wrap=True)

    first = settings.first_seed
    out = config.output.out
    with tracked(out, "demo", settings, {"data": settings.data_seed, "first": first}, {}) as run:
        found = Demo(settings, run.path, say).run()
        write(run, found, settings, len(tasks_of(settings, run.path).known))
    if config.output.as_json:
        print(
            json.dumps({"schema": 1, "folder": str(out), "seeds": [s.model_dump(mode="json") for s in found]})
        )
        return
    Console().print(Markdown("\n".join(table(found, settings))))
    Console(highlight=False).print(
        f"Written to {out}: table.md, curves.svg, the policies in seed-*/rl/policy.",
        markup=False,
        soft_wrap=True,
    )
