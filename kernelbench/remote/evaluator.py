"""The evaluator whose candidates are built, verified and timed by a server; tasks are traced here."""

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from pydantic import ValidationError

from kernelwright.kernelbench.errors import InfrastructureError, TaskError, UsageError
from kernelwright.kernelbench.evaluator import Effort, LocalEvaluator, Measurement, Referee
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.evaluator.several_devices import SeveralDevices
from kernelwright.kernelbench.records import Candidate, Environment, Evaluation, Target, Task, Work
from kernelwright.kernelbench.remote.client import AWAY_S, EvaluationClient, ServerAwayError
from kernelwright.kernelbench.remote.machines import BEGIN_ANOTHER, difference
from kernelwright.kernelbench.remote.wire import (
    EvaluationRequest,
    EvaluationResult,
    ProfileRequest,
    SentTask,
    ServerInfo,
)

_AHEAD = 2  # evaluations handed to a server beyond those it does at a time, so that none of its slots waits
_AWAY_OF_SEVERAL_S = 60.0  # that one of several servers may be away, until others do its work
_KNOWN = 1000  # tasks whose server is remembered
_log = logging.getLogger("kernelwright")


class EvaluationServer:
    """One server, as all threads that use it share it."""

    def __init__(self, client: EvaluationClient, info: ServerInfo, effort: Effort | None) -> None:
        """`effort`: of measurements that name none; None: the server's own."""
        self.client, self.info, self.effort = client, info, effort
        self.tasks: dict[str, None] = {}  # sha256 of those that it has evaluated, the oldest first
        self._lock = threading.Lock()

    def evaluate(self, task: Task, candidate: Candidate, measurement: Measurement) -> EvaluationResult:
        """Have a candidate evaluated. Raises as `EvaluationClient` does."""
        with _fitting(self.client.url):
            request = EvaluationRequest(
                task=SentTask.of(task),
                source=candidate.source,
                language=candidate.language,
                effort=measurement.effort or self.effort,
                baselines=measurement.baselines,  # type: ignore[arg-type]  # which are checked
                to_beat=measurement.to_beat,
                operators=measurement.operators,
                timed=measurement.timed,
                key=uuid.uuid4().hex,
            )
        with self._lock:
            self.tasks[task.sha256] = None
            while len(self.tasks) > _KNOWN:
                del self.tasks[next(iter(self.tasks))]
        return self.client.evaluate(request)


class RemoteEvaluator(LocalEvaluator):
    """Evaluates candidates on a server. `local` traces tasks here, on the CPU."""

    def __init__(self, server: EvaluationServer, local: LocalEvaluator, owns_server: bool = False) -> None:
        """`owns_server`: closing it ends the connections to the server."""
        super().__init__(local.sessions)
        self._server, self._local, self._owns_server = server, local, owns_server

    @property
    def name(self) -> str:
        return self._server.client.url

    @property
    def at_once(self) -> int:
        return self._server.info.slots + _AHEAD

    @property
    def target(self) -> Target:
        return self._server.info.target

    @property
    def environment(self) -> Environment:
        return self._server.info.environment

    def describe_chip(self) -> str:
        return self.target.fingerprint.chip

    def evaluate(
        self, task: Task, candidate: Candidate, measurement: Measurement = Measurement()
    ) -> Evaluation:
        """Return the server's verdict.

        Raises TaskError, also for what the server refuses; InfrastructureError if it fails, does not answer
        or is no longer on the same machine.
        """
        found = self._server.evaluate(task, candidate, measurement)
        if found.no_verdict == "task":
            raise TaskError(f"{self.name}: {found.reason}", "correct the task")
        if found.evaluation is None:
            raise InfrastructureError(f"{self.name}: {found.reason or found.state}", "see the server's log")
        if differs := difference(found.target, self.target):
            raise InfrastructureError(f"{self.name} is another machine than before: {differs}", BEGIN_ANOTHER)
        return found.evaluation

    def at_one_size(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation:
        return self.evaluate(task, candidate, measurement)

    def profiled_there(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, known: str | None, closely: bool
    ) -> str | None:
        with _fitting(self.name):
            request = ProfileRequest(
                task=SentTask.of(task),
                source=candidate.source,
                language=candidate.language,
                schedule=candidate.schedule,
                kernels=candidate.kernels,
                evaluation=evaluation,
                known=known,
                closely=closely,
            )
        return self._server.client.profile(request)

    def work(self, task: Task) -> Work:
        with _fitting(self.name):
            return self._server.client.work(task)

    def computing(self) -> AbstractContextManager[None]:
        """Return a block that waits for nothing: nothing is timed on this machine."""
        return contextlib.nullcontext()

    def holds(self, task: Task) -> bool:
        """Tell whether the server has evaluated the task before: replies to it are compared there."""
        return task.sha256 in self._server.tasks

    def fault(self) -> str | None:
        try:
            self._server.client.health()
        except ServerAwayError as error:
            return error.message
        return None

    def sibling(self, cache: SessionCache | None = None) -> LocalEvaluator:
        return RemoteEvaluator(self._server, self._local.sibling(cache))

    def abort(self) -> None:
        self._server.client.abort()
        super().abort()

    def close(self) -> None:
        self._local.close()
        if self._owns_server:
            self._server.client.close()


@contextlib.contextmanager
def _fitting(url: str) -> Iterator[None]:
    """Turn what a record has no room for into a TaskError."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        field = first["loc"][-1] if first["loc"] else "a field"
        raise TaskError(f"{url} does not take this: {field}: {first['msg']}", "make it smaller") from None


def connect(
    urls: Sequence[str],
    token: str | None,
    *,
    cache: Path,
    effort: Effort | None = None,
    recorded: Target | None = None,
    away_s: float = AWAY_S,
    say: Callable[[str], None] = _log.warning,
) -> LocalEvaluator:
    """Return an evaluator of these servers, which must be on machines of one kind.

    `cache`: folder of builds of the local processes. `effort`: see `EvaluationServer`. `recorded`: what
    a run that goes on was measured on. A server that does not answer is left out, if others do, and `say` is
    told so. Raises UsageError.
    """
    servers = reachable(urls, token, effort=effort, away_s=away_s, say=say)
    if recorded is not None and (differs := difference(servers[0].info.target, recorded)):
        raise UsageError(
            f"{servers[0].client.url} is not what this run was measured on: {differs}", BEGIN_ANOTHER
        )
    try:
        local = Referee.start(cache=cache)
    except BaseException:
        for server in servers:
            server.client.close()
        raise
    *others, last = servers  # closed last, with the process that the others' are forked from
    members = [RemoteEvaluator(server, local.sibling(), owns_server=True) for server in others]
    members.append(RemoteEvaluator(last, local, owns_server=True))
    return SeveralDevices(members) if others else members[0]


def reachable(
    urls: Sequence[str],
    token: str | None,
    *,
    effort: Effort | None = None,
    away_s: float = AWAY_S,
    say: Callable[[str], None] = _log.warning,
) -> list[EvaluationServer]:
    """Return the servers that answer. Raises UsageError if none does, and if their machines differ."""
    found: list[EvaluationServer] = []
    away: list[ServerAwayError] = []
    with ExitStack() as opened:
        for url in dict.fromkeys(urls):
            client = EvaluationClient(
                url, token, away_s if len(urls) == 1 else min(away_s, _AWAY_OF_SEVERAL_S)
            )
            opened.callback(client.close)
            try:
                found.append(EvaluationServer(client, client.info(), effort))
            except ServerAwayError as error:
                away.append(error)
        if not found:
            raise UsageError(away[0].message, away[0].fix)
        first, *others = found
        for server in others:
            if differs := difference(server.info.target, first.info.target):
                raise UsageError(
                    f"{server.client.url} cannot be compared with {first.client.url}: {differs}",
                    "name servers on machines of one kind",
                )
        for silent in away:
            say(f"{silent.message}; it is left out")
        opened.pop_all()
    return found
