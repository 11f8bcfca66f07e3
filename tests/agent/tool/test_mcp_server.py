"""The MCP server, with the SDK's own client: tools, typed results, tickets, progress, refusals."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult

from kernelwright.agent.tool import server
from kernelwright.agent.tool.records import EvaluationAnswer, TaskDescription, TaskHistory
from kernelwright.agent.tool.server import ServedRun, Tools
from tests.helpers.conversing import TASK, Pool, file
from tests.helpers.tool_runs import tool_run


def served(
    folder: Path, use: Callable[[Client], Awaitable[None]], pool: Pool | None = None, root: Path | None = None
) -> None:
    """Have a client use a server of the run in a folder."""
    tools = Tools(ServedRun(lambda say: tool_run(folder, pool)), root)

    async def connected() -> None:
        async with Client(tools.server()) as client:
            await use(client)

    try:
        asyncio.run(connected())
    finally:
        tools.close()


def text(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


async def answer(client: Client, tool: str, **arguments: Any) -> EvaluationAnswer:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text(result)
    return EvaluationAnswer.model_validate(result.structured_content)


def test_every_tool_has_typed_results(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(tools) == [
            "check", "compile_dump", "describe_task", "history", "measure", "profile", "result", "submit"
        ]  # fmt: skip
        for tool in tools.values():
            assert tool.output_schema is not None and tool.output_schema["properties"]
            assert tool.description
            assert "ctx" not in tool.input_schema["properties"]
        assert tools["check"].input_schema.get("required", []) == []

    served(tmp_path, use)


def test_a_client_improves_a_kernel(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        described = await client.call_tool("describe_task", {})
        found = TaskDescription.model_validate(described.structured_content)
        assert found.reference == TASK.source and TASK.source.strip() in text(described)
        wrong = await answer(client, "check", source=file("row 3 is off"))
        assert wrong.result is not None and not wrong.result.right
        first = await answer(client, "measure", source=file(1.2))
        assert first.result is not None
        assert first.result.speedup["eager"].median == 1.2
        better = await answer(client, "measure", source=file(1.6), idea="one pass")
        assert better.result is not None and better.result.best == better.result.number
        profile = await client.call_tool("profile", {"number": better.result.number})
        assert profile.structured_content is not None and "Metrics:" in profile.structured_content["said"]
        compiled = await client.call_tool("compile_dump", {})
        assert "the kernels of the compiler" in text(compiled)
        submitted = await answer(client, "submit")
        assert submitted.result is not None and submitted.result.sha256 == better.result.sha256
        listed = await client.call_tool("history", {"number": 2})
        history = TaskHistory.model_validate(listed.structured_content)
        assert [each.number for each in history.files] == [0, 1, 2]
        assert "speedup = 1.6" in text(listed)

    served(tmp_path, use)
    assert "speedup = 1.6" in (tmp_path / "best" / "file_0.py").read_text()


def test_a_long_call_is_answered_with_a_ticket_and_progress(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        told: list[tuple[float, str | None]] = []

        async def progress(passed: float, total: float | None, message: str | None) -> None:
            told.append((passed, message))

        result = await client.call_tool(
            "measure", {"source": file(1.5), "wait_s": 0.5}, progress_callback=progress
        )
        found = EvaluationAnswer.model_validate(result.structured_content)
        assert (found.state, found.result) == ("running", None)
        assert f"call result with ticket {found.ticket}" in text(result)
        assert told and told[-1][1] is not None and told[-1][1].startswith("measure: ")
        done = await answer(client, "result", ticket=found.ticket)
        assert done.state == "done" and done.result is not None and done.result.right
        assert (await answer(client, "result", ticket=found.ticket)).result == done.result

    served(tmp_path, use, Pool(1.5))


def test_files_are_read_from_the_folder_of_the_server_alone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "kernel.py").write_bytes(file(1.5).replace("\n", "\r\n").encode())
    (tmp_path / "outside.py").write_text(file(1.5))
    (root / "link.py").symlink_to(tmp_path / "outside.py")
    (root / "latin.py").write_bytes(b"# \xe9\n")
    (root / "circle.py").symlink_to("circle.py")
    os.mkfifo(root / "pipe.py")
    (root / "folder.py").mkdir()

    async def use(client: Client) -> None:
        found = await answer(client, "measure", path="sub/kernel.py")
        assert found.result is not None and found.result.right
        assert (await answer(client, "measure", source=file(1.5))).result == found.result
        for path, said in (
            ("../outside.py", "is no Python file in"),
            (str(tmp_path / "outside.py"), "is no Python file in"),
            ("link.py", "is no Python file in"),
            ("run.db", "is no Python file in"),
            ("missing.py", "cannot be read: No such file"),
            ("latin.py", "is not UTF-8 text"),
            ("pipe.py", "is no file"),
            ("folder.py", "cannot be read: Is a directory"),
            ("circle.py", "is no path"),
            ("null\0.py", "is no path"),
            ("\ud800.py", "is no path"),
        ):
            result = await client.call_tool("check", {"path": path})
            assert result.is_error and said in text(result), path
        both = await client.call_tool("check", {"path": "sub/kernel.py", "source": file(1.5)})
        assert both.is_error and "give the `path` of a file or its text" in text(both)

    served(tmp_path / "run", use, root=root)


def test_a_file_that_becomes_a_link_while_it_is_read_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that may write here alone has the server read, and history show, what lies elsewhere."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for folder in (root / "sub", elsewhere):
        folder.mkdir(parents=True)
        (folder / "kernel.py").write_text(file(1.5))
    opened = server._without_waiting

    def raced(path: str, flags: int) -> int:
        (root / "sub").rename(root / "old")
        (root / "sub").symlink_to(elsewhere)
        return opened(path, flags)

    monkeypatch.setattr(server, "_without_waiting", raced)

    async def use(client: Client) -> None:
        result = await client.call_tool("check", {"path": "sub/kernel.py"})
        assert result.is_error and "is no Python file in" in text(result)

    served(tmp_path / "run", use, root=root)


def test_an_idea_commands_no_terminal(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await answer(client, "measure", source=file(1.5), idea="\x1b[2J\0\ud800tiles")
        assert "?[2J??tiles" in text(await client.call_tool("history"))

    served(tmp_path / "run", use)


def test_a_server_without_a_folder_reads_no_files(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        result = await client.call_tool("check", {"path": "kernel.py"})
        assert result.is_error and "this server reads no files" in text(result)

    served(tmp_path, use)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("measure", {"source": "class ModelNew: ..."}, "no kernels of its own"),
        ("measure", {"source": file(1.5), "task": "other"}, "there is no task 'other'"),
        ("profile", {"number": 7}, "there is no file 7"),
        ("result", {"ticket": "none"}, "there is no ticket 'none'"),
        ("submit", {}, "no file is right yet"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path: Path, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async def use(client: Client) -> None:
        result = await client.call_tool(tool, arguments)
        assert result.is_error and said in text(result)
        assert "Traceback" not in text(result) and len(text(result).splitlines()) == 1

    served(tmp_path, use)


def test_a_client_that_gives_up_does_not_lose_the_result(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.call_tool("measure", {"source": file(1.5)}), 0.5)
        again = await answer(client, "measure", source=file(1.5))
        assert again.result is not None and again.result.number == 0

    pool = Pool(1.0)
    served(tmp_path, use, pool)
    assert pool.evaluated.count("measure speedup = 1.5") <= 2


def test_calls_run_side_by_side(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        sources = [file(1.0 + number / 10) for number in range(4)]
        answers = await asyncio.gather(*map(partial(_measured, client), sources))
        assert sorted(found.result.number for found in answers if found.result is not None) == [0, 1, 2, 3]

    pool = Pool(0.3)
    served(tmp_path, use, pool)
    assert pool.most_under_way == 4


async def _measured(client: Client, source: str) -> EvaluationAnswer:
    return await answer(client, "measure", source=source)
