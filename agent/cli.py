"""The command `run`."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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

from agent.allowance import Allowance
from agent.llm.model import Endpoint, Sampling
from agent.llm.prices import SHIPPED
from agent.llm.session import ModelSession, Roles, Terms, languages_for
from agent.loop import deadline
from agent.replay import ReplayedEvaluations, differences
from agent.run import MODEL_TASKS, Settings, carry_out
from kernelbench import sources
from kernelbench.cli import (
    Baselines,
    EffortName,
    Json,
    KernelbenchDir,
    Overrides,
    OwnKernels,
    TargetName,
    check_protocol,
    check_target,
)
from kernelbench.errors import StorageError, UsageError
from kernelbench.evaluator import EvaluationPool, Evaluator, most_lanes
from kernelbench.machine import cache_folder
from kernelbench.records import Language, Precision
from results.database import RunDatabase
from results.folder import RunFolder
from results.formats import Format, render
from results.lessons import Effect, effects_of
from results.outputs import write_outputs
from results.report import Report

log = Console(stderr=True, highlight=False)


def run(
    context: typer.Context,
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
    language: Annotated[
        list[str] | None,
        typer.Option(help="Of a model's kernels: cpp, triton, on a GPU cuda; several with --search evolve."),
    ] = None,
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
        str,
        typer.Option(
            help="How candidates follow from each other: refine; with a model best-of-n, beam, evolve."
        ),
    ] = "refine",
    refine_from: Annotated[
        str, typer.Option(help="What refine goes on from: best (or a failure to mend), latest.")
    ] = "best",
    beam_width: Annotated[int, typer.Option(help="Kernels that a beam goes on from.")] = 3,
    beam_advices: Annotated[int, typer.Option(help="Pieces of advice on each of them.")] = 2,
    islands: Annotated[int, typer.Option(help="That evolve side by side.")] = 4,
    memory: Annotated[
        bool, typer.Option(help="Tell models what changes to other tasks' kernels came to.")
    ] = True,
    learn_from: Annotated[
        list[Path] | None,
        typer.Option(help="Tell them what changes in this run came to, too; several allowed."),
    ] = None,
    target: TargetName = "cpu",
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
    max_minutes_per_task: Annotated[
        float | None, typer.Option(help="Of evaluations and model calls, without waiting for their turn.")
    ] = None,
    max_evaluations: Annotated[
        int | None, typer.Option(help="Candidates that are evaluated in the run, each winner twice.")
    ] = None,
    max_evaluations_per_task: Annotated[int | None, typer.Option(help="The same for each task.")] = None,
    max_usd: Annotated[float | None, typer.Option(help="What language models may cost the run.")] = None,
    max_usd_per_task: Annotated[float | None, typer.Option(help="The same for each task.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens that language models may take in the run, prompts included.")
    ] = None,
    max_tokens_per_task: Annotated[int | None, typer.Option(help="The same for each task.")] = None,
    prices: Annotated[Path, typer.Option(help="A table of what tokens cost, as TOML.")] = SHIPPED,
    requests_a_minute: Annotated[float | None, typer.Option(help="That the endpoint allows.")] = None,
    tokens_a_minute: Annotated[float | None, typer.Option(help="That the endpoint allows.")] = None,
    lanes: Annotated[
        int | None,
        typer.Option(help="Candidates built and verified at a time; one times at a time. Default: a few."),
    ] = None,
    tasks_at_once: Annotated[
        int | None,
        typer.Option(
            help=f"Tasks worked on at a time. Default: {MODEL_TASKS} with a model, else as many as lanes."
        ),
    ] = None,
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
    if lanes is not None and not 1 <= lanes <= most_lanes():
        raise UsageError(
            f"--lanes {lanes} is not for this machine", f"its memory is enough for 1 to {most_lanes()}"
        )
    if tasks_at_once is not None and tasks_at_once < 1:
        raise UsageError(f"--tasks-at-once {tasks_at_once} leaves nothing to do", "give at least 1")
    if resume is not None:
        _only(context, "resume", _OF_A_SESSION)
    if replay is not None:
        _only(context, "replay", ("out", "as_json"))
    session = _Session(
        endpoint=Endpoint(requests_a_minute=requests_a_minute, tokens_a_minute=tokens_a_minute),
        prices=prices,
        run_limit=_allowance("", max_usd, max_tokens, max_evaluations, max_minutes),
        task_limit=_allowance(
            "-per-task", max_usd_per_task, max_tokens_per_task, max_evaluations_per_task, max_minutes_per_task
        ),
        lanes=lanes,
        tasks_at_once=tasks_at_once,
        learn_from=tuple(learn_from or ()),
        as_json=as_json,
    )
    path = out or Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}"
    if replay is not None:
        return _replay(replay, path, as_json)
    if resume is not None:
        with RunFolder.resume(resume) as folder, RunDatabase.open(folder.database) as database:
            settings = session.limiting(_settings_of(database)).checked()
            _, protocol = check_protocol(
                settings.baselines, settings.own_kernels, settings.effort, device=settings.target
            )
            with Evaluator(cache=cache_folder(), protocol=protocol, device=settings.target) as evaluator:
                return session.carry_out(folder, database, evaluator, settings)
    device = check_target(target)
    against, protocol = check_protocol(baselines, own_kernels, effort, device=device)
    roles = None
    if model is not None:
        roles = Roles(
            coder=_sampling(model, temperature, reasoning_effort, reply_tokens),
            judge=_sampling(judge_model or model, judge_temperature, judge_reasoning_effort, reply_tokens),
            languages=_languages(language, device),
        )
    settings = session.limiting(
        Settings(
            coder=coder,
            judge=judge or ("llm" if coder == "llm" else "rules"),
            search=search,
            refine_from=refine_from,
            beam_width=beam_width,
            beam_advices=beam_advices,
            islands=islands,
            rounds=rounds,
            target_speedup=target_speedup,
            patience=patience,
            target=device,
            baselines=against,
            own_kernels=own_kernels,
            effort=effort,
            memory=memory,
            roles=roles,
        )
    ).checked()
    session.check(settings)  # what cannot work is said before anything is begun
    chosen = sources.resolve(
        tasks or [],
        suite=suite,
        kernelbench_dir=kernelbench_dir,
        overrides=sources.from_words(overrides or []),
        precision=precision,
    )
    with (
        RunFolder.create(path) as folder,
        Evaluator(cache=cache_folder(), protocol=protocol, device=device) as evaluator,
        RunDatabase.create(
            folder.database,
            settings=settings.to_json(),
            target=evaluator.target,
            environment=evaluator.environment,
            command=shlex.join(["kernelwright", *sys.argv[1:]]),
            tasks=chosen,
        ) as database,
    ):
        return session.carry_out(folder, database, evaluator, settings)


# What is not part of what a run is, so that it may be given anew when a run goes on.
_OF_A_SESSION = (
    "max_minutes", "max_minutes_per_task", "max_evaluations", "max_evaluations_per_task", "max_usd",
    "max_usd_per_task", "max_tokens", "max_tokens_per_task", "prices", "requests_a_minute", "tokens_a_minute",
    "lanes", "tasks_at_once", "learn_from", "as_json",
)  # fmt: skip


def _only(context: typer.Context, option: str, besides: Sequence[str]) -> None:
    """Raises UsageError where anything else is given beside an option that takes a run as it is."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name not in (option, *besides) and source is not None and source.name == "COMMANDLINE":
            given = next((word for word in parameter.opts if word.startswith("--")), "TASK")
            raise UsageError(f"--{option} takes {given} from the run", "leave it out")


@dataclass(frozen=True)
class _Session:
    """How a run is worked on this time."""

    endpoint: Endpoint
    prices: Path
    run_limit: Allowance
    task_limit: Allowance
    lanes: int | None
    tasks_at_once: int | None
    learn_from: tuple[Path, ...]
    as_json: bool

    def limiting(self, settings: Settings) -> Settings:
        """The limits that a run began with hold until others are given."""
        run, task = self.run_limit, self.task_limit
        return settings.model_copy(
            update={
                "run_limit": settings.run_limit.replaced_by(run),
                "task_limit": settings.task_limit.replaced_by(task),
            }
        )

    def check(self, settings: Settings) -> None:
        """Raises UsageError, MissingPrerequisite or StorageError where it cannot be done so."""
        if settings.roles is not None:
            self._terms(settings).budget_for(settings.roles)
        self._learned()

    def carry_out(
        self, folder: RunFolder, database: RunDatabase, evaluator: Evaluator, settings: Settings
    ) -> int:
        learned, models = self._learned(), None
        if settings.roles is not None:
            models = ModelSession.asking(settings.roles, self._terms(settings), database)
        with EvaluationPool(evaluator, self.lanes) as pool:
            at_once = self.tasks_at_once or (pool.lanes if models is None else MODEL_TASKS)
            return _carry_out(folder, database, pool, settings, models, at_once, learned, self.as_json)

    def _terms(self, settings: Settings) -> Terms:
        return Terms(self.endpoint, self.prices, settings.run_limit, settings.task_limit)

    def _learned(self) -> list[Effect]:
        found: list[Effect] = []
        for path in self.learn_from:
            with RunDatabase.open(path, read_only=True) as run:
                found += effects_of(run)
        return found


def _replay(recorded_in: Path, path: Path, as_json: bool) -> int:
    with (
        RunDatabase.open(recorded_in, read_only=True) as recorded,
        RunFolder.create(path) as folder,
        Evaluator(cache=cache_folder()) as evaluator,
        RunDatabase.create(
            folder.database,
            settings=recorded.settings,
            target=recorded.run.target,
            environment=recorded.run.environment,
            command=shlex.join(["kernelwright", *sys.argv[1:]]),
            tasks=[entry.task for entry in recorded.tasks()],
        ) as database,
        ReplayedEvaluations(evaluator, recorded) as pool,
    ):
        for entry in recorded.tasks():
            database.record_lessons(entry.task.id, entry.lessons)
        settings = _settings_of(database)
        models = ModelSession.replaying(settings.roles, recorded) if settings.roles is not None else None
        _carry_out(folder, database, pool, settings, models, 1, (), as_json)
        found = differences(recorded, database)
    for difference in found:
        log.print(difference, markup=False, soft_wrap=True)
    log.print("Other decisions than in the run." if found else "The same decisions as in the run.")
    return 1 if found else 0


def _allowance(
    suffix: str, usd: float | None, tokens: int | None, evaluations: int | None, minutes: float | None
) -> Allowance:
    """Raises UsageError."""
    given = {"usd": usd, "tokens": tokens, "evaluations": evaluations, "minutes": minutes}
    for name, limit in given.items():
        if limit is not None and (limit < 0 or (name == "minutes" and limit == 0)):
            raise UsageError(f"--max-{name}{suffix} {limit:g} is no limit", "give more")
    return Allowance.model_validate(given)


def _languages(names: list[str] | None, device: str) -> tuple[Language, ...]:
    """That models write in. Raises UsageError."""
    known = languages_for(device)
    for name in names or ():
        if name not in known:
            raise UsageError(f"models write no {name} kernels for {device}", f"choose {', '.join(known)}")
    return tuple(name for name in known if (names is None and name == known[0]) or name in (names or ()))


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
    pool: EvaluationPool,
    settings: Settings,
    models: ModelSession | None,
    at_once: int,
    learned: Sequence[Effect],
    as_json: bool,
) -> int:
    check = deadline(settings.run_limit.minutes)
    try:
        with (
            models or contextlib.nullcontext(),
            _progress(len(database.tasks())) as (say, advance),
        ):
            complete = carry_out(database, pool, settings, check, say, advance, at_once, models, learned)
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
