"""Transports: a server process over standard input and output, and HTTP with a bearer token; how they end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from mcp.shared._httpx_utils import create_mcp_http_client

from kernelwright.agent.tool.transport import serve_http
from kernelwright.kernelbench.errors import UsageError
from tests.helpers.conversing import TASK, file

TOKEN = "0123456789abcdef0123456789abcdef"
SERVE = """
import sys
from pathlib import Path
from kernelwright.agent.tool.server import ServedRun, Tools
from kernelwright.agent.tool.transport import serve_http, serve_stdio
from tests.helpers.conversing import Pool
from tests.helpers.tool_runs import tool_run

folder, pause_s, how, *rest = sys.argv[1:]
tools = Tools(ServedRun(lambda say: tool_run(Path(folder), Pool(float(pause_s)))), None)
if how == "stdio":
    serve_stdio(tools.server())
else:
    serve_http(tools.server(), "127.0.0.1", int(rest[0]), rest[1] if len(rest) > 1 else None)
tools.close()
"""


def command(folder: Path, *words: str, pause_s: float = 0) -> list[str]:
    return [sys.executable, "-c", SERVE, str(folder), str(pause_s), *words]


@contextmanager
def http_server(folder: Path, *words: str, pause_s: float = 0) -> Iterator[str]:
    """Address of a server process; `pause_s`: seconds that an evaluation takes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        command(folder, "http", str(port), *words, pause_s=pause_s), stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_over_standard_input_and_output(tmp_path: Path) -> None:
    async def use() -> None:
        words = command(tmp_path, "stdio")
        server = StdioServerParameters(command=words[0], args=words[1:], env=dict(os.environ))
        async with Client(server) as client:
            described = await client.call_tool("describe_task", {})
            assert described.structured_content is not None
            assert described.structured_content["task"] == TASK.id

    asyncio.run(use())


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_server_ends_with_a_signal_while_its_client_keeps_standard_input_open(
    tmp_path: Path, sent: signal.Signals
) -> None:
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    }
    asks = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    process = subprocess.Popen(
        command(tmp_path, "stdio"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        process.stdin.write(json.dumps(asks).encode() + b"\n")
        process.stdin.flush()
        assert b"kernelwright referee" in process.stdout.readline()
        process.send_signal(sent)
        assert process.wait(30) != 0


@pytest.mark.slow
def test_what_a_client_of_http_no_longer_waits_for_is_recorded(tmp_path: Path) -> None:
    async def history(url: str) -> list[str]:
        async with Client(url) as client:
            result = await client.call_tool("history", {})
            assert result.structured_content is not None
            return [each["verdict"] for each in result.structured_content["files"]]

    async def measure(url: str) -> None:
        async with Client(url) as client:
            with suppress(TimeoutError):
                await asyncio.wait_for(client.call_tool("measure", {"source": file(1.5)}), 0.5)

    with http_server(tmp_path, pause_s=2) as url:
        asyncio.run(measure(url))
        for _ in range(100):
            if found := asyncio.run(history(url)):
                break
            time.sleep(0.1)
    assert found == ["correct"]


@pytest.mark.slow
def test_over_http_a_token_is_needed_where_there_is_one(tmp_path: Path) -> None:
    async def use(url: str) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            create_mcp_http_client(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            assert len((await client.list_tools()).tools) == 8

    with http_server(tmp_path, TOKEN) as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            assert httpx.post(url, headers=headers, json={}).status_code == 401
        asyncio.run(use(url))


@pytest.mark.slow
def test_over_http_without_a_token_other_names_of_the_host_are_refused(tmp_path: Path) -> None:
    with http_server(tmp_path) as url:
        answer = httpx.post(url, headers={"Host": "evil.example:80"}, json={})
        assert answer.status_code == 421
        origin = httpx.post(url, headers={"Origin": "http://evil.example"}, json={})
        assert origin.status_code == 403


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} cannot be served at: Address already in use"):
            serve_http(MCPServer("test"), "127.0.0.1", port, None)
