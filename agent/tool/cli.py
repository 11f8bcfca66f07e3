"""The commands `mcp`, `workspace`, `check`, `measure`, `submit` and `history`."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from pydantic import Field
from rich.console import Console

from kernelwright.agent.options.evaluation import EvaluationOptions
from kernelwright.agent.options.run import (
    BudgetOptions,
    EvaluationBudget,
    ModelOptions,
    RunConfig,
    TaskOptions,
)
from kernelwright.agent.spending.budget import BudgetSpent
from kernelwright.agent.tool.records import FileProfile, FileResult
from kernelwright.agent.tool.run import ExternalRun, prepared, recorded_history
from kernelwright.agent.tool.workspace import KERNEL, MARK, Server, Workspace
from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.cli import (
    AnyTargets,
    Baselines,
    CastTo,
    EffortName,
    Init,
    Inputs,
    Json,
    KernelbenchDir,
    Overrides,
    Sizes,
)
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.options import Section, build, command
from kernelwright.kernelbench.records import Precision, Task
from kernelwright.results.store.database import RunDatabase

if TYPE_CHECKING:
    from kernelwright.agent.tool.client import RefereeClient

Opening: TypeAlias = Callable[[Callable[[str], None]], AbstractContextManager[ExternalRun]]
log = Console(stderr=True, highlight=False)
_FIX_MCP = "install it with: pip install 'mcp>=2.3,<3'"
_AUTHOR = "workspace"  # of files that are evaluated at a shell
_LEAST_TOKEN = 16  # characters
_LOCAL = ("127.0.0.1", "localhost", "::1")


class SeedOptions(Section):
    """Kernel to start from."""

    seed: Annotated[
        str, typer.Option(metavar="SEED", help="Kernel to start from: builtin, none, or FILE.py.")
    ] = "builtin"


class ServerOptions(Section):
    """Transport of the MCP server, and the folder of its run."""

    transport: Annotated[
        Literal["stdio", "http"], typer.Option(help="Transport: standard input and output, or HTTP.")
    ] = "stdio"
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535), typer.Option(help="Port to listen on.")] = 8901
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the bearer token that clients send.")
    ] = None
    out: Annotated[Path | None, typer.Option(help="New folder of the run.", show_default="runs/DATE")] = None
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Serve the run in this folder.")] = None


class McpConfig(Section):
    """Options of `kernelwright mcp`."""

    tasks: TaskOptions = TaskOptions()
    start: SeedOptions = SeedOptions()
    budget: EvaluationBudget = EvaluationBudget()
    evaluation: EvaluationOptions = EvaluationOptions()
    server: ServerOptions = ServerOptions()


@command(McpConfig)
def mcp(config: McpConfig) -> None:
    """Serve the referee to coding agents, as an MCP server.

    In a workspace it needs no arguments. Elsewhere it serves the tasks that are named, in a new run.
    """
    try:
        from kernelwright.agent.tool.server import ServedRun, Tools
    except ImportError as error:
        raise MissingPrerequisite(f"the MCP server needs the package mcp ({error})", _FIX_MCP) from None
    from kernelwright.agent.tool.transport import serve_http, serve_stdio

    options = config.server
    opening, folder = _run_to_serve(config)
    tools = Tools(ServedRun(opening), folder if options.transport == "stdio" else None)
    try:
        if options.transport == "stdio":
            serve_stdio(tools.server())
        else:
            serve_http(tools.server(), options.host, options.port, _token(options))
    finally:
        tools.close()


def _run_to_serve(config: McpConfig) -> tuple[Opening, Path]:
    """Return what opens the run, and the folder of the agent's files.

    What can be known before the evaluator starts is checked. Raises UsageError, StorageError.
    """
    options, here = config.server, Path.cwd()
    named = bool(config.tasks.tasks or config.tasks.suite)
    if options.resume is None and named:
        asked = RunConfig(
            tasks=config.tasks,
            model=ModelOptions(seed=config.start.seed),
            budget=BudgetOptions.model_validate(config.budget.model_dump()),
            evaluation=config.evaluation,
        )
        prepared(asked)
        out = options.out or Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}"
        return partial(ExternalRun.new, asked, out, shlex.join(["kernelwright", *sys.argv[1:]])), here
    if named:
        raise UsageError("--resume takes the tasks from the run", "leave them out")
    if options.resume is not None:
        run = options.resume
    else:
        found = Workspace.around(here)
        if isinstance(found.run, Server):
            raise UsageError("this workspace has a server", f"call the tools at {found.run.url}")
        run, here = found.run, found.path
    RunDatabase.open(run, read_only=True).close()
    return partial(ExternalRun.resumed, run), here


def _token(options: ServerOptions) -> str | None:
    """Return the bearer token. Raises UsageError where others could call without one."""
    if options.token_file is None:
        if options.host not in _LOCAL:
            raise UsageError(
                f"--host {options.host} lets other machines evaluate code here", "give --token-file FILE"
            )
        return None
    try:
        token = options.token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{options.token_file} cannot be read: {error}", "give a text file") from None
    if len(token) < _LEAST_TOKEN:
        raise UsageError(
            f"the token in {options.token_file} has {len(token)} characters",
            f"write at least {_LEAST_TOKEN}, such as: openssl rand -hex 32",
        )
    return token


def workspace(
    task: Annotated[str, typer.Argument(help="FILE.py, FILE.py:CLASS or builtin:level1/softmax.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the workspace.")],
    seed: Annotated[
        str, typer.Option(metavar="SEED", help="Kernel to start from: builtin, none, or FILE.py.")
    ] = "builtin",
    out: Annotated[
        Path | None, typer.Option(help="New folder of the run.", show_default="runs/DATE-DIR")
    ] = None,
    target: AnyTargets = "cpu",
    inputs: Inputs = None,
    init: Init = None,
    overrides: Overrides = None,
    sizes: Sizes = None,
    precision: CastTo = Precision.task,
    baselines: Baselines = None,
    effort: EffortName = "full",
    max_evaluations: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Evaluations that the agent may have.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(min=0, metavar="X", help="Minutes that the agent may take.")
    ] = None,
    kernelbench_dir: KernelbenchDir = None,
) -> None:
    """Make a folder in which a coding agent improves a kernel, with `check`, `measure` and `submit`."""
    values = {
        "tasks": [task],
        "inputs": inputs,
        "init": init,
        "overrides": overrides,
        "sizes": sizes,
        "precision": precision,
        "kernelbench_dir": kernelbench_dir,
        "seed": seed,
        "target": target,
        "baselines": baselines,
        "effort": effort,
        "max_evaluations": max_evaluations,
        "max_minutes": max_minutes,
    }
    config = build(RunConfig, {name: value for name, value in values.items() if value is not None})
    place = folder.resolve()
    if (place / MARK).exists():
        raise UsageError(f"{folder} is a workspace already", "choose another folder")
    run = out or Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}-{place.name}"
    if taken := Workspace(place, run, "").taken():
        raise UsageError(f"{folder} has {', '.join(taken)} already", "choose another folder")
    if run.resolve().is_relative_to(place):
        raise UsageError(f"the run {run} would be inside the workspace", "give --out outside of it")
    command = shlex.join(["kernelwright", *sys.argv[1:]])
    with ExternalRun.new(config, run, command, _say) as opened:
        one = opened.task()
        described = opened.describe(one)
        tried = opened.tried(one)
        kernel = tried[0].candidate.source if tried else one.source.replace("class Model(", "class ModelNew(")
        Workspace(place, run.resolve(), one.id).write(described, kernel)
        if tried:
            _say(opened.result(one, 0).said)
    _say(f"Workspace: {folder}")
    _say(f"Run: {run}")
    _say(f"Next: cd {shlex.quote(str(folder))}, and start a coding agent there, or: kernelwright measure")


File = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The file.", show_default=KERNEL)]
Idea = Annotated[str, typer.Option(metavar="TEXT", help="Idea that is new in the file.")]


def check(file: File = None, idea: Idea = "", as_json: Json = False) -> int:
    """Verify the kernel of a workspace, without timing it."""
    return _evaluate(file, idea, as_json, timed=False)


def measure(
    file: File = None,
    idea: Idea = "",
    profile: Annotated[
        bool, typer.Option("--profile", help="Also print what the profilers read of it.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Verify the kernel of a workspace, and time it."""
    return _evaluate(file, idea, as_json, timed=True, profile=profile)


def submit(file: File = None, idea: Idea = "", as_json: Json = False) -> int:
    """Confirm the fastest kernel of a workspace, or a file, and write the results of its run."""
    source = candidate_from_file(file).source if file is not None else None
    with _opened() as (found, referee):
        result, _ = referee.submit(source, idea=idea)
        _show(result, as_json)
        if result.right and isinstance(found.run, Path) and not as_json:
            print(f"Report: {found.run / 'report.html'}")
            words = ["kernelwright", "export", str(found.run), found.task, "--out", "kernels"]
            print(f"Next: {shlex.join(words)}")
    return 0 if result.right else 1


def history(as_json: Json = False) -> None:
    """List the files of a workspace with their results."""
    found = Workspace.around(Path.cwd())
    run = found.run
    listed = recorded_history(run, found.task) if isinstance(run, Path) else _client(run).history()
    print(listed.model_dump_json() if as_json else listed.said)


def _evaluate(file: Path | None, idea: str, as_json: bool, timed: bool, profile: bool = False) -> int:
    with _opened() as (found, referee):
        source = candidate_from_file(file or found.kernel).source
        result, left = referee.evaluate(source, timed=timed, idea=idea)
        if profile and result.timed:
            result = result.model_copy(update={"said": referee.profile(result.number).said})
        _show(result, as_json)
        if left and not as_json:
            print(f"Budget: {left}.")
    return 0 if result.right else 1


@dataclass(frozen=True)
class _RunHere:
    """The tools of a run that this process opens, as `RefereeClient` has those of a server."""

    run: ExternalRun
    task: Task

    def evaluate(self, source: str, *, timed: bool, idea: str) -> tuple[FileResult, str]:
        found = self.run.evaluate(self.task, source, timed=timed, author=_AUTHOR, idea=idea)
        return found, self.run.left(self.task)

    def submit(self, source: str | None, *, idea: str) -> tuple[FileResult, str]:
        found = self.run.submit(self.task, source, author=_AUTHOR, idea=idea)
        return found, self.run.left(self.task)

    def profile(self, number: int) -> FileProfile:
        return self.run.profile(self.task, number)


@contextmanager
def _opened() -> "Iterator[tuple[Workspace, _RunHere | RefereeClient]]":
    """Open the run of the workspace that this process is in, or a client of its server. Raises UsageError."""
    found = Workspace.around(Path.cwd())
    if not isinstance(found.run, Path):
        yield found, _client(found.run)
        return
    try:
        with ExternalRun.resumed(found.run, _say) as run:
            yield found, _RunHere(run, run.task(found.task))
    except BudgetSpent as spent:
        raise UsageError(str(spent), "make another workspace for more") from None


def _client(server: Server) -> "RefereeClient":
    try:
        from kernelwright.agent.tool.client import RefereeClient
    except ImportError as error:
        raise MissingPrerequisite(f"this workspace needs the package mcp ({error})", _FIX_MCP) from None
    return RefereeClient(server.url, server.token)


def _show(result: FileResult, as_json: bool) -> None:
    print(result.model_dump_json() if as_json else f"{result.said}\nEvaluation {result.evaluation}.")


def _say(line: str) -> None:
    log.print(line, markup=False, soft_wrap=True)
