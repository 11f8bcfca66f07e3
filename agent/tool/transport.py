"""Transports of the MCP server: standard input and output, and streamable HTTP with a bearer token."""

import hmac
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kernelwright.kernelbench.errors import InfrastructureError, UsageError

_LOCAL = "127.0.0.1"
_GRACE_S = 5  # for open streams, when the server is stopped
_IDLE_S = 60  # that a connection is kept: clients keep them for 5 s, and no end may cross a request


def serve_stdio(server: MCPServer) -> None:
    """Serve one client until it closes standard input, or until interrupted."""
    with _stdin_by_socket() as forwarding:

        async def serve() -> None:
            async with anyio.create_task_group() as group:

                async def until_closed() -> None:
                    await server.run_stdio_async()
                    group.cancel_scope.cancel()

                group.start_soon(until_closed)
                try:
                    await anyio.sleep_forever()
                finally:  # closed, or interrupted
                    with suppress(OSError):
                        forwarding.shutdown(socket.SHUT_RDWR)

        anyio.run(serve)


@contextmanager
def _stdin_by_socket() -> Iterator[socket.socket]:
    """Forward standard input through a socket, which is yielded.

    The server reads its input in a thread, and waits for that thread when it is cancelled. A read of a
    terminal or pipe cannot be ended from here; that of a socket ends when its other end is shut.
    """
    reading, forwarding = socket.socketpair()
    stdin = os.dup(0)

    def forward() -> None:
        with suppress(OSError):
            while piece := os.read(stdin, 1 << 16):
                forwarding.sendall(piece)
        with suppress(OSError):
            forwarding.shutdown(socket.SHUT_RDWR)

    os.dup2(reading.fileno(), 0)
    threading.Thread(target=forward, name="stdin", daemon=True).start()
    try:
        with reading, forwarding:
            yield forwarding
    finally:
        os.dup2(stdin, 0)


def serve_http(server: MCPServer, host: str, port: int, token: str | None) -> None:
    """Serve clients at http://HOST:PORT/mcp until interrupted; port 0 is a free one. Raises UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be served at: {error.strerror}", "give another --port or --host"
        ) from None
    port = listening.getsockname()[1]
    http = _http(server, host, port, token)

    async def serve() -> None:
        name = f"[{host}]" if ":" in host else host
        print(f"Serving at http://{name}:{port}/mcp", file=sys.stderr, flush=True)
        await http.serve([listening])

    with listening:
        anyio.run(serve)


@contextmanager
def served_here(server: MCPServer, token: str) -> Iterator[str]:
    """Serve clients on this machine, from a thread, at the address that is yielded."""
    with socket.socket() as listening:
        listening.bind((_LOCAL, 0))
        port = listening.getsockname()[1]
        http = _http(server, _LOCAL, port, token)
        thread = threading.Thread(
            target=anyio.run, args=(http.serve, [listening]), name="mcp-server", daemon=True
        )
        thread.start()
        try:
            while not http.started:
                if not thread.is_alive():
                    raise InfrastructureError(
                        "the MCP server of an attempt did not start", "go on with --resume"
                    )
                time.sleep(0.01)
            yield f"http://{_LOCAL}:{port}/mcp"
        finally:
            http.should_exit = True
            thread.join()


def _http(server: MCPServer, host: str, port: int, token: str | None) -> uvicorn.Server:
    app: ASGIApp = server.streamable_http_app(host=host, transport_security=_security(host, port, token))
    if token is not None:
        app = BearerToken(app, token)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
    )


def _security(host: str, port: int, token: str | None) -> TransportSecuritySettings:
    """Return the check of the Host header, against DNS rebinding; with a token any name may be used."""
    if token is not None:
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    names = {host, "127.0.0.1", "localhost", "[::1]"}
    hosts = [f"{name}:{port}" for name in sorted(names)]
    return TransportSecuritySettings(
        allowed_hosts=hosts, allowed_origins=[f"http://{each}" for each in hosts]
    )


class BearerToken:
    """Refuses requests without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode()
            if not hmac.compare_digest(given, self._expected):
                refused = "a bearer token is missing or wrong\n"
                app = PlainTextResponse(refused, 401, {"WWW-Authenticate": "Bearer"})
        await app(scope, receive, send)
