"""An OpenAI-compatible server on this machine that answers from a script instead of a model.

Tests, benchmarks and `kernelwright serve scripted` use it. It speaks real HTTP: it streams server-sent
events, and a script can have it break a connection off, answer with an error, or stay silent.

    with FakeEndpoint().serving() as endpoint:
        endpoint.say("a first reply", ErrorResponse(429), Reply("a later one", pause_s=0.1))
        ...  # a client at endpoint.base_url
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """A completion, streamed in pieces.

    With `breaks_after` the connection ends after so many chunks, and `stalls_s` of silence.
    """

    text: str
    reasoning: str = ""
    finish: str | None = "stop"
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
    )
    pieces: int = 5
    pause_s: float = 0.0  # before each chunk
    latency_s: float = 0.0  # before the first
    breaks_after: int | None = None
    stalls_s: float = 0.0
    calls: tuple[tuple[str, dict[str, Any] | str], ...] = ()  # of tools: the name and the arguments
    call_id: str = "call-{}"
    chunks: tuple[dict[str, Any], ...] = ()  # instead of those of the above
    is_ended: bool = True  # with [DONE]


@dataclass(frozen=True)
class ErrorResponse:
    """An HTTP error with the JSON body of OpenAI's API, or another `body`."""

    status: int
    message: str = "no"
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True)
class RawResponse:
    """Raw bytes in place of an event stream."""

    body: bytes
    kind: str = "text/event-stream"  # of content


Answer = Reply | ErrorResponse | RawResponse
Script = Callable[[dict[str, Any], int], Answer]  # from a request's body and its number, counted from 0


class FakeEndpoint:
    """The server, with the bodies of all requests and the seconds (monotonic) when they came."""

    def __init__(self, port: int = 0) -> None:
        """`port`: 0 for any free one."""
        self.requests: list[dict[str, Any]] = []
        self.at: list[float] = []
        self.models: list[dict[str, Any]] | None = None  # that it lists; None: it lists none
        self.script: Script = lambda body, number: Reply("ok")
        self.under_way = self.most_under_way = 0  # requests at the same time
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                known = outer.models is not None and self.path == "/v1/models"
                self._headers(200 if known else 404, "application/json")
                self.wfile.write(json.dumps({"data": outer.models} if known else {}).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path in ("/v1/chat/completions", "/v1/responses"), self.path
                with outer._lock:
                    number = len(outer.requests)
                    outer.requests.append(body)
                    outer.at.append(time.monotonic())
                    outer.under_way += 1
                    outer.most_under_way = max(outer.most_under_way, outer.under_way)
                try:
                    self._answer(outer.script(body, number))
                except (BrokenPipeError, ConnectionResetError):
                    pass
                finally:
                    with outer._lock:
                        outer.under_way -= 1

            def _answer(self, answer: Answer) -> None:
                self.close_connection = True
                if isinstance(answer, ErrorResponse):
                    error = {"message": answer.message, "code": answer.code, "type": "error"}
                    self._headers(answer.status, "application/json", answer.headers)
                    body = {"error": error} if answer.body is None else answer.body
                    self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())
                    return
                if isinstance(answer, RawResponse):
                    self._headers(200, answer.kind)
                    self.wfile.write(answer.body)
                    return
                time.sleep(answer.latency_s)
                self._headers(200, "text/event-stream")
                for number, chunk in enumerate(_chunks(answer)):
                    if number == answer.breaks_after:
                        time.sleep(answer.stalls_s)
                        return
                    time.sleep(answer.pause_s)
                    self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                    self.wfile.flush()
                if answer.is_ended:
                    self.wfile.write(b"data: [DONE]\n\n")

            def _headers(self, status: int, kind: str, more: dict[str, str] | None = None) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Connection", "close")
                for name, value in (more or {}).items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def say(self, *answers: Answer | str) -> None:
        """Answer requests with these in turn, and all later ones with the last."""
        script = [Reply(answer) if isinstance(answer, str) else answer for answer in answers]
        self.script = lambda body, number: script[min(number, len(script) - 1)]

    @contextmanager
    def serving(self) -> Iterator["FakeEndpoint"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


def _chunks(answer: Reply) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}

    if answer.chunks:
        yield from answer.chunks
        return
    yield chunk({"role": "assistant", "content": ""})
    if answer.reasoning:
        yield chunk({"reasoning_content": answer.reasoning})
    for piece in _split(answer.text, answer.pieces):
        yield chunk({"content": piece})
    for index, (name, arguments) in enumerate(answer.calls):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        function: dict[str, str] = {"name": name, "arguments": ""}
        called = {"index": index, "id": answer.call_id.format(index), "function": function}
        yield chunk({"tool_calls": [called]})
        for piece in _split(text, answer.pieces):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if answer.finish is not None:
        yield chunk({}, "tool_calls" if answer.calls and answer.finish == "stop" else answer.finish)
    if answer.usage is not None:
        yield chunk({}) | {"choices": [], "usage": answer.usage}


def _split(text: str, pieces: int) -> Sequence[str]:
    size = max(1, -(-len(text) // pieces))
    return [text[i : i + size] for i in range(0, len(text), size)]
