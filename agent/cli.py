"""The command `run`."""

import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from kernelwright.agent.budget import SpendingLimits
from kernelwright.agent.llm.model import Endpoint, Sampling
from kernelwright.agent.llm.prices import SHIPPED
from kernelwright.agent.llm.session import Roles, languages_for
from kernelwright.agent.run import MODEL_TASKS, Settings
from kernelwright.agent.run_session import RunSession, settings_of
from kernelwright.agent.run_session import replay as replayed
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.cli import (
    AnyTarget,
    Baselines,
    CastTo,
    CheckFirst,
    CompileLimit,
    EffortName,
    Json,
    KernelbenchDir,
    Overrides,
    OwnKernels,
    check_limits,
    check_protocol,
    with_or_without_gpu,
)
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import COMPILE_S, most_slots
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Language, Precision
from kernelwright.kernelbench.without_gpu import start_evaluator
from kernelwright.profiling.selection import stored
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder


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
        typer.Option(
            help="Kernel language: cpp, triton or cuda. With --search evolve a model may use several."
        ),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature of the coder's model.")] = None,
    judge_temperature: Annotated[float | None, typer.Option(help="Temperature of the judge's model.")] = None,
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
            help="How candidates follow from each other: refine; exhaustive, which tries every schedule of "
            "the builtin coder, as far as --rounds go; with a model best-of-n, beam, evolve."
        ),
    ] = "refine",
    hold: Annotated[
        list[str] | None,
        typer.Option(help="A knob of the builtin coder that stays as it is: fuse, block; several allowed."),
    ] = None,
    rank_by: Annotated[
        str,
        typer.Option(
            help="What says which schedule is tried next: rules; surrogate, a model of times that learns "
            "from the runs of --learn-from."
        ),
    ] = "rules",
    refine_from: Annotated[
        str, typer.Option(help="What refine goes on from: best (or a failure to fix), latest.")
    ] = "best",
    beam_width: Annotated[int, typer.Option(help="Kernels that a beam goes on from.")] = 3,
    beam_advices: Annotated[int, typer.Option(help="Pieces of advice on each of them.")] = 2,
    islands: Annotated[int, typer.Option(help="That evolve side by side.")] = 4,
    memory: Annotated[bool, typer.Option(help="Use what changes to other tasks' kernels came to.")] = True,
    learn_from: Annotated[
        list[Path] | None,
        typer.Option(help="Use what changes in this run came to, too; several allowed."),
    ] = None,
    target: AnyTarget = "cpu",
    overrides: Overrides = None,
    precision: CastTo = Precision.task,
    baselines: Baselines = None,
    compile_limit: CompileLimit = COMPILE_S,
    own_kernels: OwnKernels = 0.0,
    effort: EffortName = "full",
    check_first: CheckFirst = False,
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
    prices: Annotated[
        Path,
        typer.Option(help="Prices of tokens, as TOML.", show_default="built-in"),
    ] = SHIPPED,
    requests_a_minute: Annotated[float | None, typer.Option(help="Rate limit of the endpoint.")] = None,
    tokens_a_minute: Annotated[float | None, typer.Option(help="Its limit of tokens.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Candidates built and verified at a time; one times at a time. Default: a few."),
    ] = None,
    tasks_at_once: Annotated[
        int | None,
        typer.Option(
            help=f"Tasks worked on at a time. Default: {MODEL_TASKS} with a model, else as many as workers."
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
    if workers is not None and not 1 <= workers <= most_slots():
        raise UsageError(
            f"--workers {workers} is not for this machine", f"its memory is enough for 1 to {most_slots()}"
        )
    if tasks_at_once is not None and tasks_at_once < 1:
        raise UsageError(f"--tasks-at-once {tasks_at_once} leaves nothing to do", "give at least 1")
    if resume is not None:
        _only(context, "resume", _GIVEN_AGAIN)
    if replay is not None:
        _only(context, "replay", ("out", "as_json"))
    session = RunSession(
        endpoint=Endpoint(requests_a_minute=requests_a_minute, tokens_a_minute=tokens_a_minute),
        prices=prices,
        run_limit=_allowance("", max_usd, max_tokens, max_evaluations, max_minutes),
        task_limit=_allowance(
            "-per-task", max_usd_per_task, max_tokens_per_task, max_evaluations_per_task, max_minutes_per_task
        ),
        workers=workers,
        tasks_at_once=tasks_at_once,
        learn_from=tuple(learn_from or ()),
        as_json=as_json,
    )
    path = out or Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}"
    if replay is not None:
        return replayed(replay, path, as_json)
    if resume is not None:
        with RunFolder.resume(resume) as folder, RunDatabase.open(folder.database) as database:
            settings = session.limiting(settings_of(database)).checked()
            _, protocol = check_protocol(
                settings.baselines,
                settings.own_kernels,
                settings.effort,
                device=settings.target,
                check_first=settings.check_first,
            )
            limits = check_limits(settings.compile_limit_s)
            with start_evaluator(
                cache=cache_folder(),
                protocol=protocol,
                limits=limits,
                device=settings.target,
                chips=settings.chips,
            ) as evaluator:
                database.record_settings(settings.to_json())
                return session.execute(folder, database, evaluator, settings)
    device, chips = with_or_without_gpu(target)
    written_for = "cuda:0" if chips else device
    against, protocol = check_protocol(baselines, own_kernels, effort, device=device, check_first=check_first)
    limits = check_limits(compile_limit)
    roles = None
    if model is not None:
        roles = Roles(
            coder=_sampling(model, temperature, reasoning_effort, reply_tokens),
            judge=_sampling(judge_model or model, judge_temperature, judge_reasoning_effort, reply_tokens),
            languages=_languages(language, written_for),
            selection=stored(cache_folder(), device),
        )
    settings = session.limiting(
        Settings(
            coder=coder,
            judge=judge or ("llm" if coder == "llm" else "rules"),
            search=search,
            hold=tuple(hold or ()),
            rank_by=rank_by,
            refine_from=refine_from,
            beam_width=beam_width,
            beam_advices=beam_advices,
            islands=islands,
            rounds=rounds,
            target_speedup=target_speedup,
            patience=patience,
            target=device,
            chips=chips,
            baselines=against,
            compile_limit_s=compile_limit,
            own_kernels=own_kernels,
            effort=effort,
            check_first=check_first,
            memory=memory,
            language=_own_language(language if roles is None else None, written_for),
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
        start_evaluator(
            cache=cache_folder(), protocol=protocol, limits=limits, device=device, chips=chips
        ) as evaluator,
        RunDatabase.create(
            folder.database,
            settings=settings.to_json(),
            target=evaluator.target,
            environment=evaluator.sessions.environment,
            command=shlex.join(["kernelwright", *sys.argv[1:]]),
            tasks=chosen,
        ) as database,
    ):
        return session.execute(folder, database, evaluator, settings)


# What is not part of what a run is, so that it may be given again when a run goes on.
_GIVEN_AGAIN = (
    "max_minutes", "max_minutes_per_task", "max_evaluations", "max_evaluations_per_task", "max_usd",
    "max_usd_per_task", "max_tokens", "max_tokens_per_task", "prices", "requests_a_minute", "tokens_a_minute",
    "workers", "tasks_at_once", "learn_from", "as_json",
)  # fmt: skip


def _only(context: typer.Context, option: str, besides: Sequence[str]) -> None:
    """Raises UsageError where anything else is given beside an option that takes a run as it is."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name not in (option, *besides) and source is not None and source.name == "COMMANDLINE":
            given = next((word for word in parameter.opts if word.startswith("--")), "TASK")
            raise UsageError(f"--{option} takes {given} from the run", "leave it out")


def _allowance(
    suffix: str, usd: float | None, tokens: int | None, evaluations: int | None, minutes: float | None
) -> SpendingLimits:
    """Raises UsageError."""
    given = {"usd": usd, "tokens": tokens, "evaluations": evaluations, "minutes": minutes}
    for name, limit in given.items():
        if limit is not None and (limit < 0 or (name == "minutes" and limit == 0)):
            raise UsageError(f"--max-{name}{suffix} {limit:g} is no limit", "give more")
    return SpendingLimits.model_validate(given)


def _languages(names: list[str] | None, device: str) -> tuple[Language, ...]:
    """That models write in. Raises UsageError."""
    known = languages_for(device)
    for name in names or ():
        if name not in known:
            raise UsageError(f"models write no {name} kernels for {device}", f"choose {', '.join(known)}")
    return tuple(name for name in known if (names is None and name == known[0]) or name in (names or ()))


def _own_language(names: list[str] | None, device: str) -> Language:
    """That the builtin coder writes in. Raises UsageError."""
    if len(names or ()) > 1:
        raise UsageError("the builtin coder writes in one language", "give one --language")
    for name in names or ():
        if name not in get_args(Language):
            raise UsageError(f"{name} is no language of kernels", "choose cpp, triton or cuda")
    return cast(Language, names[0]) if names else "cpp" if device == "cpu" else "triton"


def _sampling(model: str, temperature: float | None, effort: str | None, reply_tokens: int) -> Sampling:
    """Raises UsageError."""
    if temperature is not None and not 0 <= temperature <= 2:
        raise UsageError(f"{temperature:g} is no temperature", "give 0 to 2")
    if reply_tokens < 1:
        raise UsageError(f"--reply-tokens {reply_tokens} leaves room for no reply", "give some thousands")
    return Sampling(model=model, temperature=temperature, reasoning_effort=effort, max_tokens=reply_tokens)
