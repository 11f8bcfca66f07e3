"""Client of one server of evaluations: requests over HTTP, and their failures as errors with a fix.

    401                      UsageError            the token
    400, 403, 413, 422       TaskError             this request, whoever sends it again
    429                      asked again, after the pause that the server names
    502, 503, 504, no answer asked again, for `AWAY_S`; then InfrastructureError

A request has a key, so that one which is sent again, because its answer was lost or the server was started
again, is one evaluation.
"""

import threading
import time
from typing import Any, TypeVar

import httpx2
from pydantic import ValidationError

from kernelwright.kernelbench.errors import InfrastructureError, KernelwrightError, TaskError, UsageError
from kernelwright.kernelbench.records import Record, Task, Work
from kernelwright.kernelbench.remote.wire import (
    API,
    ENDED,
    EvaluationRequest,
    EvaluationResult,
    ProfileRequest,
    SentTask,
    ServerHealth,
    ServerInfo,
)
from kernelwright.kernelbench.version import kernelwright_version

R = TypeVar("R", bound=Record)
AWAY_S = 300.0  # that a server may be away, such as to be started again
_WAIT_S = 20.0  # that one request waits for a result
_ANSWER_S = 30.0  # that an answer may take beyond it
_CONNECT_S, _PROFILED_S = 10.0, 900.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0
_FULL, _AWAY = 429, (502, 503, 504)  # the latter of a proxy in front of it, too
_MOST_BYTES = 64 << 20  # of an answer
_START = "kernelwright serve evaluator --host 0.0.0.0 --port 8900 --token-file FILE"


class ServerAwayError(InfrastructureError):
    """No answer from a server."""


class EvaluationClient:
    """Client of the server at `url`; thread-safe. Methods raise as the module says."""

    def __init__(self, url: str, token: str | None = None, away_s: float = AWAY_S) -> None:
        """Prepare a client; nothing is sent. Raises UsageError for an invalid URL."""
        try:
            parsed = httpx2.URL(url.rstrip("/"))
        except httpx2.InvalidURL:
            parsed = None
        if parsed is None or parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"{url} is no address of a server", "give one such as http://gpu7:8900")
        self.url, self._away_s = str(parsed), away_s
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx2.Client(
            base_url=self.url,
            headers=headers,
            limits=httpx2.Limits(max_connections=None),
        )
        self._closed = threading.Event()
        self._open: set[str] = set()  # ids of evaluations that somebody waits for

    def health(self) -> ServerHealth:
        """Ask once whether the server works. Raises ServerAwayError."""
        return self._read(ServerHealth, self._once("GET", "/health", within_s=_CONNECT_S))

    def info(self) -> ServerInfo:
        """Return what the server evaluates on. Raises UsageError if it is of another version."""
        self._require_ours(self.health())
        return self._read(ServerInfo, self._checked(self._once("GET", "/v1/server")))

    def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """Return what came of a request, once it has ended. `request` must have a key."""
        assert request.key is not None
        while True:
            # Its id comes at once, to give it up by.
            accepted = self._again("POST", "/v1/evaluations", request, {"full": "true"})
            found: EvaluationResult | None = self._read(EvaluationResult, accepted)
            while found is not None and found.state not in ENDED:
                self._open.add(found.id)
                found = self._state_of(last := found.id)
                self._open.discard(last)
            if found is not None:
                return found  # else the server has lost its database, and is asked again

    def work(self, task: Task) -> Work:
        """Return what a call of a task's reference must move and compute. Raises TaskError."""
        return self._read(Work, self._again("POST", "/v1/work", SentTask.of(task), {}))

    def profile(self, request: ProfileRequest) -> str:
        """Return what the server's profilers read of a candidate, as JSON. Raises TaskError."""
        return self._again("POST", "/v1/profiles", request, {}, within_s=_PROFILED_S).text

    def abort(self) -> None:
        """Give up all evaluations that are waited for, from any thread; who waits is told so."""
        self._closed.set()
        for id in tuple(self._open):
            try:
                self._once("DELETE", f"/v1/evaluations/{id}")
            except ServerAwayError:
                break  # it does them for nobody
        self.close()

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        self._http.close()

    def _state_of(self, id: str) -> EvaluationResult | None:
        """Return the state of an evaluation after a while; None if the server does not know it."""
        asked = {"wait": _WAIT_S, "full": "true"}
        response = self._again("GET", f"/v1/evaluations/{id}", None, asked, none=(404,))
        return self._read(EvaluationResult, response) if response.status_code != 404 else None

    def _again(
        self,
        method: str,
        path: str,
        sent: Record | None,
        parameters: dict[str, Any],
        none: tuple[int, ...] = (),
        within_s: float = _WAIT_S + _ANSWER_S,
    ) -> httpx2.Response:
        """Send a request until the server has answered it, which may take `within_s`."""
        pause, away_since = _FIRST_PAUSE_S, None
        while True:
            try:
                response = self._once(method, path, sent, parameters, within_s)
            except ServerAwayError:
                away_since = away_since or time.monotonic()
                if self._closed.is_set() or time.monotonic() - away_since > self._away_s:
                    raise
            else:
                status = response.status_code
                away_since = (away_since or time.monotonic()) if status in _AWAY else None
                is_away = away_since is not None and time.monotonic() - away_since < self._away_s
                if status != _FULL and not is_away:
                    return response if status in none else self._checked(response)
                pause = _seconds(response.headers.get("retry-after"), pause)
            self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _once(
        self,
        method: str,
        path: str,
        sent: Record | None = None,
        parameters: dict[str, Any] | None = None,
        within_s: float = _WAIT_S + _ANSWER_S,
    ) -> httpx2.Response:
        content = sent.model_dump_json(by_alias=True).encode() if sent is not None else None
        until = time.monotonic() + within_s + _ANSWER_S  # whatever trickles in meanwhile
        try:
            with self._http.stream(
                method,
                path,
                content=content,
                params=parameters,
                timeout=httpx2.Timeout(within_s, connect=_CONNECT_S),
            ) as response:
                return _whole(response, until)
        except (httpx2.TransportError, RuntimeError) as error:  # RuntimeError: the client was closed
            raise ServerAwayError(
                f"{self.url} does not answer ({_in_a_line(error)})",
                f"check the address, or start it there: {_START}",
            ) from None

    def _checked(self, response: httpx2.Response) -> httpx2.Response:
        """Return a response that is no error. Raises UsageError, TaskError, InfrastructureError."""
        if response.is_success:
            return response
        status = response.status_code
        try:
            problem = response.json()
            error, fix = str(problem["error"]), str(problem["fix"])
        except (ValueError, KeyError, TypeError):
            if status == 404:
                raise self._not_ours() from None
            error, fix = f"HTTP {status}", "see the server's log"
        kind: type[KernelwrightError] = InfrastructureError
        if status == 401:
            kind, error, fix = (
                UsageError,
                "wrong or missing token",
                "give the file with it as --evaluator-token",
            )
        elif status == 413:
            kind, error, fix = (
                TaskError,
                "the task and the candidate are too large for it",
                "make them smaller",
            )
        elif status < 500:
            kind = TaskError
        raise kind(f"{self.url}: {error}", fix)

    def _read(self, kind: type[R], response: httpx2.Response) -> R:
        try:
            return kind.model_validate_json(response.content)
        except ValidationError:
            raise self._not_ours() from None

    def _require_ours(self, health: ServerHealth) -> None:
        mine = kernelwright_version()
        if (health.api, health.version) != (API, mine):
            raise UsageError(
                f"{self.url} runs kernelwright {health.version}, and this is {mine}: verdicts may differ",
                "install the same version on both",
            )

    def _not_ours(self) -> UsageError:
        return UsageError(
            f"{self.url} is not a server of evaluations of this version", f"start one there: {_START}"
        )


def _whole(response: httpx2.Response, until: float) -> httpx2.Response:
    """Return a response with its content. Raises RemoteProtocolError for one that does not end."""
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > _MOST_BYTES or time.monotonic() > until:
            raise httpx2.RemoteProtocolError("its answer does not end")
    pause = response.headers.get("retry-after")
    headers = {"retry-after": pause} if pause is not None else {}
    return httpx2.Response(response.status_code, headers=headers, content=bytes(content))


def _seconds(text: str | None, otherwise: float) -> float:
    """Return the pause that a Retry-After header asks for."""
    try:
        return min(max(float(text or ""), 0.0), 4 * _LONGEST_PAUSE_S)
    except ValueError:
        return otherwise


def _in_a_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
