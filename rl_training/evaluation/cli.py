"""`kernelwright train evaluate`."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field
from rich.console import Console
from rich.table import Table

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.options import Section, command
from kernelwright.rl_training.environment.place import RewardPlaceOptions
from kernelwright.rl_training.trainers.options import Sources

if TYPE_CHECKING:
    from kernelwright.rl_training.environment.task_data import TaskData
    from kernelwright.rl_training.evaluation.report import EvaluationReport


class EvaluatedPolicyOptions(Section):
    """Policy, and what it is held against."""

    model: Annotated[str, typer.Option(help="Folder of a policy, or its name on the Hugging Face Hub.")]
    base: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model that it was trained from, for its best of n beside."),
    ] = None
    cpu: Annotated[bool, typer.Option("--cpu", help="Generate on the CPU even if there is a GPU.")] = False


class EvaluatedTaskOptions(Section):
    """Tasks to evaluate the policy on."""

    data: Sources
    split: Annotated[
        Literal["test", "train"], typer.Option(help="Tasks that were held out, or that were trained on.")
    ] = "test"
    held_out_share: Annotated[
        float, Field(ge=0, lt=1), typer.Option(help="Share of the runs' tasks that was held out.")
    ] = 0.0


class SamplingOptions(Section):
    """Replies to each task."""

    samples: Annotated[int, Field(ge=1), typer.Option(help="Replies to a task: the largest k.")] = 16
    temperature: Annotated[float, Field(ge=0), typer.Option(help="Temperature of sampling.")] = 1.0
    top_p: Annotated[
        float, Field(ge=0.01, le=1), typer.Option(help="Share of the likeliest tokens to sample from.")
    ] = 1.0
    max_completion: Annotated[int, Field(ge=1), typer.Option(help="Tokens of a reply.")] = 8192
    at_once: Annotated[int, Field(ge=1), typer.Option(help="Replies to generate together.")] = 16
    seed: Annotated[int, Field(ge=0), typer.Option(help="Seed of sampling.")] = 0


class EvaluationOutputOptions(Section):
    """Destination of results."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder; an evaluation in it is resumed.")]
    as_json: Json = False


class EvaluateConfig(Section):
    """Options of `kernelwright train evaluate`."""

    policy: EvaluatedPolicyOptions
    tasks: EvaluatedTaskOptions
    evaluation: RewardPlaceOptions = RewardPlaceOptions()
    sampling: SamplingOptions = SamplingOptions()
    output: EvaluationOutputOptions


@command(EvaluateConfig)
def evaluate(config: EvaluateConfig) -> None:
    """Evaluate a policy on held-out tasks: pass@k, best@k and fast_p, against best of n of its base model.

    Writes DIR/evaluation.json and evaluation.md, and every reply and measurement as it comes. Give the same
    command again to resume after a kill.
    """
    from kernelwright.agent.profiled import ProfilingPool
    from kernelwright.rl_training.trainers.policy import quiet, require

    tasks, policy, place = config.tasks, config.policy, config.evaluation.resolved()
    chosen = _chosen(tasks, config.sampling.seed, place.device)
    require()
    quiet()
    from kernelwright.rl_training import new_folder
    from kernelwright.rl_training.evaluation.evaluate import REPLIES, PolicyEvaluation, ReplyFile
    from kernelwright.rl_training.evaluation.report import EvaluationReport, evaluated, markdown, ratio
    from kernelwright.rl_training.evaluation.sampling import SamplingSettings
    from kernelwright.rl_training.measured import MeasuredPool
    from kernelwright.rl_training.tracking.environment import hashes
    from kernelwright.rl_training.tracking.run import tracked
    from kernelwright.rl_training.trainers.policy import load_policy

    settings = SamplingSettings(**config.sampling.model_dump())
    out, console = config.output.out, Console(stderr=True, highlight=False)
    names = {"policy": policy.model} | ({"base": policy.base} if policy.base is not None else {})
    ks = tuple(k for k in sorted({1, 4, 16, settings.samples}) if k <= settings.samples)
    with ExitStack() as stack:
        inputs = {each.task.id: each.task.sha256 for each in chosen}
        for name in names.values():
            inputs |= hashes(sorted(Path(name).glob("*.safetensors")))
        evaluator = stack.enter_context(place.evaluator())
        inputs |= config.evaluation.machine(evaluator)
        stack.enter_context(tracked(out, "evaluate", settings, {"sampling": settings.seed}, inputs))
        pool = MeasuredPool(stack.enter_context(ProfilingPool(evaluator)), out / "measured.jsonl")
        evaluation = PolicyEvaluation(chosen, pool, settings, ReplyFile(out / REPLIES))
        graded = {}
        for role, name in names.items():
            missing = evaluation.missing(role)
            console.print(f"{name}: {missing} replies to write", markup=False, soft_wrap=True)
            loaded = load_policy(name, dtype=_dtype(policy.cpu)) if missing else None
            model = _placed(loaded.model, policy.cpu) if loaded is not None else None
            graded[role] = evaluation.of(role, model, loaded.tokenizer if loaded is not None else None)
        base = graded.get("base")
        report = EvaluationReport(
            split=tasks.split,
            chip=evaluator.target.fingerprint.chip,
            device=evaluator.target.device,
            ks=ks,
            policy=evaluated(policy.model, graded["policy"], ks),
            base=evaluated(names["base"], base, ks) if base is not None else None,
            ratio=ratio(graded["policy"], base, ks[-1]) if base is not None else None,
        )
        new_folder.write(out / "evaluation.json", report.model_dump_json(indent=2) + "\n")
        new_folder.write(out / "evaluation.md", markdown(report))
    if config.output.as_json:
        print(json.dumps(report.model_dump(mode="json")))
        return
    _print(report, out)


def _chosen(tasks: EvaluatedTaskOptions, seed: int, target: str) -> tuple["TaskData", ...]:
    from kernelwright.rl_training.tasks import tasks_from

    found = tasks_from(tasks.data, tasks.held_out_share, seed)
    chosen = found.test if tasks.split == "test" else found.train
    if not chosen:
        raise UsageError(
            f"{', '.join(tasks.data)}: no task was held out",
            "give a data set of `train curate`, --held-out-share with runs, or --split train",
        )
    if found.device.partition(":")[0] != target.partition(":")[0]:
        raise UsageError(
            f"--target {target}: the tasks are for {found.device}, and prompts describe that",
            f"use --target {found.device}, or tasks of {target}",
        )
    return chosen


def _print(report: "EvaluationReport", out: Path) -> None:
    from kernelwright.rl_training.evaluation.report import rows

    console = Console(highlight=False)
    for one in filter(None, (report.policy, report.base)):
        overall = one.overall
        told = f"{one.name}: {overall.replies} replies to {overall.tasks} tasks"
        console.print(told, markup=False, soft_wrap=True)
        table = Table()
        for column in ("k", *map(str, report.ks)):
            table.add_column(column, justify="left" if column == "k" else "right")
        for name, cells in rows(overall, report.ks):
            table.add_row(name, *cells)
        console.print(table)
        if overall.without_verdict:
            console.print(f"{overall.without_verdict} replies have no verdict: the same command tries again.")
    if report.ratio is not None:
        found = report.ratio
        console.print(
            f"best@1 of the policy / best@{report.ks[-1]} of the base model, by task: "
            f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"
        )
    console.print(f"By family: {out / 'evaluation.md'}", markup=False, soft_wrap=True)


def _dtype(cpu: bool) -> str:
    import torch

    return "bfloat16" if torch.cuda.is_available() and not cpu else "float32"


def _placed(model: object, cpu: bool) -> object:
    import torch

    return model.to("cuda") if torch.cuda.is_available() and not cpu else model  # type: ignore[attr-defined]
