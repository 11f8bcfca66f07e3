"""`kernelwright serve evaluator`."""

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from kernelwright.agent.options.evaluation import EvaluationOptions
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.cli import (
    AnyTargets,
    CheckFirst,
    CompileLimit,
    EffortName,
    KernelbenchDir,
    OwnKernels,
)
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.evaluator import COMPILE_S
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.options import Section, command
from kernelwright.kernelbench.records import Task

_LOCAL = ("127.0.0.1", "localhost", "::1")
_STOPPED = "stopped; requests that are left are done at the next start with this --database"


class ListenOptions(Section):
    """Address, and who may ask."""

    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535), typer.Option(help="Port to listen on.")] = 8900
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the bearer tokens of clients, one a line."),
    ] = None


class ServedTaskOptions(Section):
    """Tasks that are evaluated."""

    allowed: Annotated[
        tuple[str, ...],
        typer.Option(
            "--tasks",
            metavar="NAME",
            help="Evaluate these tasks alone: builtin:level1, FILE.py; repeatable.",
            show_default="built-in tasks, and any that clients send",
        ),
    ] = ()
    kernelbench_dir: KernelbenchDir = None


class ServedEvaluationOptions(Section):
    """Options of evaluation."""

    target: AnyTargets = "cpu"
    effort: EffortName = "full"
    compile_limit: CompileLimit = COMPILE_S
    own_kernels: OwnKernels = 0.0
    check_first: CheckFirst = False
    workers: Annotated[
        int | None, Field(ge=1, le=256), typer.Option(help="Evaluations at a time.", show_default="a few")
    ] = None

    @property
    def resolved(self) -> EvaluationOptions:
        """All options of evaluation. Raises UsageError."""
        chosen = EvaluationOptions(
            target=self.target,
            compile_limit=self.compile_limit,
            effort=self.effort,
            own_kernels=self.own_kernels,
            check_first=self.check_first,
        )
        chosen.check()
        return chosen.resolved()


class QueueOptions(Section):
    """Queue of the requests."""

    queue: Annotated[
        int,
        Field(ge=1, le=1_000_000),
        typer.Option(help="Requests that may wait or run; others are refused."),
    ] = 4096
    patience: Annotated[
        float, Field(gt=0), typer.Option(metavar="S", help="Seconds for the verdict on a request.")
    ] = 3600.0
    database: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of requests and results.",
            show_default="evaluations-PORT.db in the cache",
        ),
    ] = None


class ServeEvaluatorConfig(Section):
    """Options of `kernelwright serve evaluator`."""

    server: ListenOptions = ListenOptions()
    tasks: ServedTaskOptions = ServedTaskOptions()
    evaluation: ServedEvaluationOptions = ServedEvaluationOptions()
    queue: QueueOptions = QueueOptions()


@command(ServeEvaluatorConfig)
def evaluator(config: ServeEvaluatorConfig) -> int:
    """Serve evaluations and rewards over HTTP, until Ctrl-C or SIGTERM.

    `run`, `mcp`, `audit` and `train rl` take its address with --evaluator. Requests survive a restart.
    """
    try:
        from kernelwright.rl_training.serving.evaluator.server import listening, serve, started
    except ImportError as error:
        raise MissingPrerequisite(
            f"the server needs {error.name}", "pip install 'kernelwright[serve]'"
        ) from None
    from kernelwright.rl_training.serving.evaluator.guards import read_tokens

    listen, options = config.server, config.evaluation.resolved
    tokens = read_tokens(listen.token_file) if listen.token_file is not None else []
    if not tokens and listen.host not in _LOCAL:
        raise UsageError(
            f"--host {listen.host} lets other machines evaluate code here", "give --token-file FILE"
        )
    tasks = _tasks(config.tasks, options.device)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with listening(listen.host, listen.port) as (socket, address):
            database = config.queue.database or cache_folder() / f"evaluations-{socket.getsockname()[1]}.db"
            with started(
                options,
                tasks,
                any_source=not config.tasks.allowed,
                tokens=tokens,
                database=database,
                workers=config.evaluation.workers,
                capacity=config.queue.queue,
                patience_s=config.queue.patience,
            ) as service:
                print(f"Serving {_what(options, len(tasks))} at {address}", file=sys.stderr)
                token = f" --evaluator-token {listen.token_file}" if tokens else ""
                print(f"Requests: {database}", file=sys.stderr)
                print(f"kernelwright run TASK --evaluator {address}{token}", flush=True)
                serve(service, socket)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
    print(_STOPPED, file=sys.stderr)
    return 0


def _tasks(options: ServedTaskOptions, device: str) -> list[Task]:
    names = options.allowed or ("builtin",)
    return sources.resolve(names, kernelbench_dir=options.kernelbench_dir, device=device)


def _what(options: EvaluationOptions, tasks: int) -> str:
    return f"{' and '.join(options.devices or (options.device,))} ({tasks} tasks by name)"
