"""The command `run`."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from agent.llm.budget import Allowance
from agent.llm.model import Endpoint, Sampling
from agent.llm.prices import SHIPPED
from agent.llm.session import LANGUAGES, ModelSession, Roles, Terms
from agent.loop import deadline
from agent.replay import ReplayedEvaluator, differences
from agent.run import Settings, carry_out
from kernelbench import sources
from kernelbench.cli import (
    Baselines,
    EffortName,
    Json,
    KernelbenchDir,
    Overrides,
    OwnKernels,
    check_protocol,
)
from kernelbench.errors import StorageError, UsageError
from kernelbench.evaluator import Evaluator, most_lanes
from kernelbench.machine import cache_folder
from kernelbench.records import Precision
from results.database import RunDatabase
from results.folder import RunFolder
from results.formats import Format, render
from results.outputs import write_outputs
from results.report import Report

log = Console(stderr=True, highlight=False)


def run(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Tasks: paths, builtin:level1/softmax, kernelbench:2/40.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Many tasks: builtin, builtin:level1, kernelbench:1, a list file.")
    ] = None,
    coder: Annotated[str, typer.Option(help="Who writes the kernels: builtin, llm.")] = "builtin",
    judge: Annotated[str | None, typer.Option(help="Who says what to change: rules, llm.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The language model that coder and judge are, at OPENAI_BASE_URL.")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Another one for the judge.")] = None,
    language: Annotated[str, typer.Option(help="Of the kernels that a model writes: cpp, triton.")] = "cpp",
    temperature: Annotated[float | None, typer.Option(help="Of the coder's model.")] = None,
    judge_temperature: Annotated[float | None, typer.Option(help="Of the judge's model.")] = None,
    reasoning_effort: Annotated[
        str | None, typer.Option(help="Of the coder's model: low, medium, high.")
    ] = None,
    judge_reasoning_effort: Annotated[str | None, typer.Option(help="Of the judge's model.")] = None,
    reply_tokens: Annotated[int, typer.Option(help="A reply's most tokens, reasoning included.")] = 16384,
    rounds: Annotated[int, typer.Option(help="Candidates a task at most.")] = 4,
    target_speedup: Annotated[
        float | None, typer.Option(help="Stop when a kernel is so many times as fast as eager.")
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many rounds without a gain.")] = None,
    search: Annotated[
        str, typer.Option(help="How candidates follow from each other: refine; with a model best-of-n, beam.")
    ] = "refine",
    target: Annotated[str, typer.Option(help="The device: cpu.")] = "cpu",
    overrides: Overrides = None,
    precision: Annotated[
        Precision, typer.Option(help="What floating inputs and weights are cast to.")
    ] = Precision.fp32,
    baselines: Baselines = None,
    own_kernels: OwnKernels = 0.0,
    effort: EffortName = "full",
    max_minutes: Annotated[
        float | None, typer.Option(help="Begin no further round after so many minutes.")
    ] = None,
    max_usd: Annotated[float | None, typer.Option(help="What language models may cost the run.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens that language models may take in the run, prompts included.")
    ] = None,
    max_usd_per_task: Annotated[float | None, typer.Option(help="The same for each task.")] = None,
    max_tokens_per_task: Annotated[int | None, typer.Option(help="The same for each task.")] = None,
    prices: Annotated[Path, typer.Option(help="A table of what tokens cost, as TOML.")] = SHIPPED,
    requests_a_minute: Annotated[float | None, typer.Option(help="That the endpoint allows.")] = None,
    tokens_a_minute: Annotated[float | None, typer.Option(help="That the endpoint allows.")] = None,
    lanes: Annotated[int, typer.Option(help="Tasks worked on at a time; one times at a time.")] = 1,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run. Default: runs/DATE.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Go through this run again, asking and measuring nothing.")
    ] = None,
    kernelbench_dir: KernelbenchDir = None,
    as_json: Json = False,
) -> int:
    """Optimize tasks: write, verify, time and improve a kernel for each, then report.

    Writes DIR/run.db as it goes, and DIR/summary.json, DIR/report.html and DIR/best/TASK.py.
    """
    if not 1 <= lanes <= most_lanes():
        raise UsageError(
            f"--lanes {lanes} is not for this machine", f"its memory is enough for 1 to {most_lanes()}"
        )
    if resume is not None and replay is not None:
        raise UsageError("--resume and --replay are two things", "give one of them")
    if replay is not None and (tasks or suite):
        raise UsageError("--replay takes its tasks from the run", "leave out TASK and --suite")
    if resume is not None and (tasks or suite or out):
        raise UsageError(
            "--resume takes its tasks and folder from the run", "leave out TASK, --suite and --out"
        )
    terms = Terms(
        endpoint=Endpoint(requests_a_minute=requests_a_minute, tokens_a_minute=tokens_a_minute),
        prices=prices,
        run=_allowance("", max_usd, max_tokens),
        task=_allowance("-per-task", max_usd_per_task, max_tokens_per_task),
    )
    path = out or Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}"
    if replay is not None:
        return _replay(replay, path, as_json)
    if resume is not None:
        with RunFolder.resume(resume) as folder, RunDatabase.open(folder.database) as database:
            settings = _settings_of(database).checked()
            _, protocol = check_protocol(settings.baselines, settings.own_kernels, settings.effort)
            with Evaluator(cache=cache_folder(), protocol=protocol) as evaluator:
                models = _asking(settings, terms, database)
                return _carry_out(folder, database, evaluator, settings, models, max_minutes, lanes, as_json)
    against, protocol = check_protocol(baselines, own_kernels, effort)
    roles = None
    if model is not None:
        if language not in LANGUAGES:
            raise UsageError(f"models write no {language} kernels here", f"choose {', '.join(LANGUAGES)}")
        roles = Roles(
            coder=_sampling(model, temperature, reasoning_effort, reply_tokens),
            judge=_sampling(judge_model or model, judge_temperature, judge_reasoning_effort, reply_tokens),
            language=language,
        )
    settings = Settings(
        coder=coder,
        judge=judge or ("llm" if coder == "llm" else "rules"),
        search=search,
        rounds=rounds,
        target_speedup=target_speedup,
        patience=patience,
        target=target,
        baselines=against,
        own_kernels=own_kernels,
        effort=effort,
        roles=roles,
        run_limit=terms.run,
        task_limit=terms.task,
    ).checked()
    if roles is not None:
        terms.budget_for(roles)  # what cannot work is said before anything is begun
    chosen = sources.resolve(
        tasks or [],
        suite=suite,
        kernelbench_dir=kernelbench_dir,
        overrides=sources.from_words(overrides or []),
        precision=precision,
    )
    with (
        RunFolder.create(path) as folder,
        Evaluator(cache=cache_folder(), protocol=protocol) as evaluator,
        RunDatabase.create(
            folder.database,
            settings=settings.to_json(),
            target=evaluator.target,
            environment=evaluator.environment,
            command=shlex.join(["kernelwright", *sys.argv[1:]]),
            tasks=chosen,
        ) as database,
    ):
        models = _asking(settings, terms, database)
        return _carry_out(folder, database, evaluator, settings, models, max_minutes, lanes, as_json)


def _replay(recorded_in: Path, path: Path, as_json: bool) -> int:
    with (
        RunDatabase.open(recorded_in, read_only=True) as recorded,
        RunFolder.create(path) as folder,
        ReplayedEvaluator(recorded, cache_folder()) as evaluator,
        RunDatabase.create(
            folder.database,
            settings=recorded.settings,
            target=recorded.run.target,
            environment=recorded.run.environment,
            command=shlex.join(["kernelwright", *sys.argv[1:]]),
            tasks=[entry.task for entry in recorded.tasks()],
        ) as database,
    ):
        settings = _settings_of(database)
        models = ModelSession.replaying(settings.roles, recorded) if settings.roles is not None else None
        _carry_out(folder, database, evaluator, settings, models, None, 1, as_json)
        found = differences(recorded, database)
    for difference in found:
        log.print(difference, markup=False, soft_wrap=True)
    log.print("Other decisions than in the run." if found else "The same decisions as in the run.")
    return 1 if found else 0


def _asking(settings: Settings, terms: Terms, database: RunDatabase) -> ModelSession | None:
    """The limits that a run began with hold until others are given."""
    if settings.roles is None:
        return None
    run, task = settings.run_limit.replaced_by(terms.run), settings.task_limit.replaced_by(terms.task)
    return ModelSession.asking(settings.roles, replace(terms, run=run, task=task), database)


def _allowance(suffix: str, usd: float | None, tokens: int | None) -> Allowance:
    """Raises UsageError."""
    for name, limit in (("--max-usd", usd), ("--max-tokens", tokens)):
        if limit is not None and limit < 0:
            raise UsageError(f"{name}{suffix} {limit:g} is no limit", "give 0 or more")
    return Allowance(usd=usd, tokens=tokens)


def _sampling(model: str, temperature: float | None, effort: str | None, reply_tokens: int) -> Sampling:
    """Raises UsageError."""
    if temperature is not None and not 0 <= temperature <= 2:
        raise UsageError(f"{temperature:g} is no temperature", "give 0 to 2")
    if reply_tokens < 1:
        raise UsageError(f"--reply-tokens {reply_tokens} leaves room for no reply", "give some thousands")
    return Sampling(model=model, temperature=temperature, reasoning_effort=effort, max_tokens=reply_tokens)


def _settings_of(database: RunDatabase) -> Settings:
    """Raises StorageError where another version wrote others."""
    try:
        return Settings.model_validate(database.settings)
    except ValidationError:
        written_by = database.run.kernelwright
        raise StorageError(
            f"the settings of this run, of kernelwright {written_by}, are not those of this version",
            "start a new run with another --out",
        ) from None


def _carry_out(
    folder: RunFolder,
    database: RunDatabase,
    evaluator: Evaluator,
    settings: Settings,
    models: ModelSession | None,
    max_minutes: float | None,
    lanes: int,
    as_json: bool,
) -> int:
    check = deadline(max_minutes)
    try:
        with (
            models or contextlib.nullcontext(),
            _progress(len(database.tasks())) as (say, advance),
        ):
            complete = carry_out(database, evaluator, settings, check, say, advance, lanes, models)
    finally:
        summary = write_outputs(folder, database)
    if as_json:
        print(summary.model_dump_json())
    else:
        sys.stdout.write(render(Report.read(database), Format.table))
    if not complete:
        log.print(
            f"Not all tasks are done; go on with: kernelwright run --resume {folder.path}",
            markup=False,
            soft_wrap=True,  # it is there to be copied
        )
    log.print(f"Report: {folder.report}", markup=False, soft_wrap=True)
    return 0


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """A bar on a terminal, a line an event elsewhere: `say` prints a line, `advance` moves the bar."""

    def say(line: str) -> None:
        log.print(f"{datetime.now():%H:%M:%S} {line}", markup=False, soft_wrap=True)

    if not log.is_terminal:
        yield say, lambda _: None
        return
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=log, transient=True) as progress:
        bar = progress.add_task("", total=total)

        def advance(task: str) -> None:
            """The id of a task that begins; an empty one when a task is done."""
            progress.update(bar, description=task, advance=0 if task else 1)

        yield say, advance
