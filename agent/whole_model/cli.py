"""The commands `extract` and `optimize`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field
from rich.console import Console
from rich.table import Table

from kernelwright.agent.options.evaluation import EvaluationOptions
from kernelwright.agent.options.run import (
    BudgetOptions,
    ExecutionOptions,
    ModelOptions,
    RunConfig,
    TunerOptions,
)
from kernelwright.agent.search.registry import SearchOptions
from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.optimize import (
    TASKS,
    ModelOptimization,
)
from kernelwright.agent.whole_model.records import ExtractedPart, ModelExtract
from kernelwright.agent.whole_model.report import markdown
from kernelwright.kernelbench.cli import Init, Inputs, Json
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.options import Section, command


class StepOptions(Section):
    """Model and its step."""

    named: Annotated[
        str,
        typer.Argument(
            help="FILE.py:NAME, package.module:NAME or hf:NAME; NAME is a model, or a function that returns "
            "one, (model, batch) or (model, batch, loss); a batch may be a function of sizes.",
            metavar="MODEL",
        ),
    ]
    inputs: Inputs = None
    init: Init = None
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", metavar="NAME=X,…", help="Lengths of named axes."),
    ] = None
    train: Annotated[
        bool, typer.Option("--train", help="A step is forward and backward, of the model's loss.")
    ] = False
    most_calls: Annotated[int, Field(ge=1), typer.Option(help="Calls of torch in a part, at most.")] = 24

    @property
    def model(self) -> ModelName:
        return ModelName.of(self.named, self.inputs or (), self.init or (), self.sizes or ())


class ExtractOutputOptions(Section):
    """Folder of the tasks, and the format of the summary."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the tasks.")]
    as_json: Json = False


class ExtractConfig(Section):
    """All that `extract` is asked to do."""

    step: StepOptions
    output: ExtractOutputOptions


class OptimizeOutputOptions(Section):
    """Folder of the result, and the format of the summary."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder, new or of the same command before.")]
    as_json: Json = False


class PartOptions(Section):
    """Parts of the model that kernels are written for."""

    most_parts: Annotated[
        int, Field(ge=1), typer.Option(help="Parts that kernels are written for, at most.")
    ] = 8


class OptimizeConfig(Section):
    """All that `optimize` is asked to do; but for the model, the options of `run`."""

    step: StepOptions
    parts: PartOptions = PartOptions()
    model: ModelOptions = ModelOptions()
    search: SearchOptions = SearchOptions()
    tuner: TunerOptions = TunerOptions()
    budget: BudgetOptions = BudgetOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    execution: ExecutionOptions = ExecutionOptions()
    output: OptimizeOutputOptions

    @property
    def run(self) -> RunConfig:
        return RunConfig(
            model=self.model,
            search=self.search,
            tuner=self.tuner,
            budget=self.budget,
            evaluation=self.evaluation,
            execution=self.execution,
        )


@command(ExtractConfig)
def extract_tasks(config: ExtractConfig) -> int:
    """Rank the parts of a model by their share of a step, and write a task for each.

    A part is a module or function that makes few calls of torch. Tasks have the shapes, dtypes and settings
    of its calls; with several --size, as batch=8,length=128[,weight=3][,hidden], they are for any size, with
    these as their workload. Writes tasks/*.py and parts.json into its folder.
    """
    out, step = config.output.out, config.step
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists already", "give the name of a new folder")
    found = ModelOptimization(step.model, step.train, out, step.most_calls, say=lambda text: None).parts()
    if config.output.as_json:
        typer.echo(found.model_dump_json())
    else:
        _show(found, out)
    return 0


@command(OptimizeConfig)
def optimize(config: OptimizeConfig) -> int:
    """Make a model's step faster: kernels for its parts, those that are faster in it, a package of these.

    Runs the agent on the modules and functions that take most of a step, puts each kernel into the model,
    keeps those that compute their calls faster there, and compares the step with all of them with the model
    as it is, at each --size: time, eager and compiled, memory, outputs and gradients. The same command goes
    on after an interruption.
    """
    step, out = config.step, config.output.out
    console = Console(stderr=True, highlight=False)
    work = ModelOptimization(
        step.model,
        step.train,
        out,
        step.most_calls,
        config.parts.most_parts,
        lambda text: console.print(text, markup=False, soft_wrap=True),
    )
    found = work.run(config.run, shlex.join(["kernelwright", *sys.argv[1:]]))
    if config.output.as_json:
        typer.echo(found.model_dump_json())
    else:
        Console(highlight=False).print(markdown(found, out), markup=False, soft_wrap=True)
    return 0


def _show(found: ModelExtract, out: Path) -> None:
    console = Console(highlight=False)
    kind = "forward and backward" if found.trains else "forward"
    console.print(
        f"{found.model}: {found.seconds:.3g} s a step ({kind}); products and attention take "
        f"{found.products_s / found.profiled_s:.0%} of its operators' time"
    )
    if not found.parts:
        console.print(
            "No part takes half a percent of it in other operators: nothing to gain by fusing them."
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", overflow="fold")
    for title in ("calls", "share", "fusable", "backward", "keeps"):
        table.add_column(title, justify="right")
    for part in found.parts:
        if part.task:
            table.add_row(*_row(part, found))
    console.print(table)
    console.print(
        "share: of all operators' time; fusable: what of that is not in products, which fusing could save at "
        "most; backward: what of it is there; keeps: memory for the backward pass"
    )
    for part in found.parts:
        if part.reads_a_sum:
            why = f"{part.task} reads a sum that is made outside of it: only torch.compile fuses the two"
            console.print(why, markup=False, soft_wrap=True)
        if part.one_size:
            why = f"{part.task} is for the first size alone, because {part.one_size}"
            console.print(why, markup=False, soft_wrap=True)
        if not part.task:
            console.print(f"No task for {part.name} ({part.fusable_s / found.profiled_s:.1%}): {part.reason}")
    tasks = [part.task for part in found.parts if part.task]
    if tasks:
        console.print(f"Next: kernelwright run {out / TASKS / tasks[0]}", soft_wrap=True)


def _row(part: ExtractedPart, found: ModelExtract) -> tuple[str, ...]:
    return (
        part.task,
        str(part.calls),
        f"{part.seconds / found.profiled_s:.1%}",
        f"{part.fusable_s / found.profiled_s:.1%}",
        f"{part.backward_s / part.seconds:.0%}",
        f"{part.kept_bytes / 2**20:.1f} MiB" if part.kept_bytes else "",
    )
