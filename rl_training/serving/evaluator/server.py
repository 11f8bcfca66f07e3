"""The server: an evaluator, its pool and the service over them, behind uvicorn."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvicorn

from kernelwright.agent.options.evaluation import EvaluationOptions
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.remote.wire import ServerInfo
from kernelwright.kernelbench.version import kernelwright_version
from kernelwright.rl_training.serving.evaluator.app import Service, application
from kernelwright.rl_training.serving.evaluator.grading import RequestGrader
from kernelwright.rl_training.serving.evaluator.ledger import Ledger
from kernelwright.rl_training.serving.evaluator.metrics import ServerMetrics
from kernelwright.rl_training.serving.evaluator.queue import EvaluationQueue
from kernelwright.rl_training.serving.evaluator.rollouts import Rollouts
from kernelwright.rl_training.serving.evaluator.tasks import TaskCatalogue

_AHEAD = 8  # requests handed to the pool for each of its slots, which picks among them what it has set up
_ANYWHERE = ("0.0.0.0", "::")
_GRACE_S = 3  # for answers under way, when the server is stopped
_IDLE_S = 75  # that connections are kept, longer than clients keep them


@contextmanager
def listening(host: str, port: int) -> Iterator[tuple[socket.socket, str]]:
    """Listen on an address, and yield the socket and its URL. Raises UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be served at: {error.strerror}", "give another --port or --host"
        ) from None
    with found:
        name = socket.gethostname() if host in _ANYWHERE else f"[{host}]" if ":" in host else host
        yield found, f"http://{name}:{found.getsockname()[1]}"


@contextmanager
def started(
    options: EvaluationOptions,
    tasks: Sequence[Task],
    *,
    any_source: bool,
    tokens: Sequence[str],
    database: Path,
    workers: int | None,
    capacity: int,
    patience_s: float,
) -> Iterator[Service]:
    """Start the service. Raises UsageError, StorageError, MissingPrerequisite."""
    with ExitStack() as stack:
        ledger = Ledger(database)
        stack.callback(ledger.close)
        evaluator = stack.enter_context(options.evaluator())
        info = ServerInfo(
            version=kernelwright_version(),
            target=evaluator.target,
            environment=evaluator.environment,
            protocol=options.protocol,
            slots=1,
            queue=capacity,
        )
        pool = ProfilingPool(evaluator, workers, options.profilers)
        info = info.model_copy(update={"slots": pool.slots})
        grader = RequestGrader(pool, info, TaskCatalogue(tasks, any_source), patience_s)
        metrics = ServerMetrics()
        queue = EvaluationQueue(ledger, grader, _AHEAD * pool.slots, capacity, metrics.observe)
        rollouts = Rollouts(ledger, queue, grader, patience_s)
        try:
            yield Service(info, queue, grader, metrics, rollouts, tuple(tokens))
        finally:
            queue.stop()
            pool.abort()  # what is under way is left for the next start
            pool.close(discard=True)
            queue.close()


def serve(service: Service, listening: socket.socket) -> None:
    """Serve until interrupted."""
    config = uvicorn.Config(
        application(service),
        log_level="warning",
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    uvicorn.Server(config).run(sockets=[listening])
