"""Client of the server of a workspace, for the commands at its shell."""

import asyncio
from typing import Any

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import CallToolResult, Implementation, TextContent

from kernelwright.agent.tool.records import EvaluationAnswer, FileProfile, FileResult, TaskHistory
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.version import kernelwright_version

_WAIT_S = 30.0  # a call; one that takes longer is waited for by its ticket


class RefereeClient:
    """Calls the tools of a server.

    Methods raise UsageError for what the server refuses, StorageError if it has ended.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url, self._headers = url, {"Authorization": f"Bearer {token}"}

    def evaluate(self, source: str, *, timed: bool, idea: str) -> tuple[FileResult, str]:
        """Return the result of a file, and what is left of the budget."""
        return self._result("measure" if timed else "check", {"source": source, "idea": idea})

    def submit(self, source: str | None, *, idea: str) -> tuple[FileResult, str]:
        """Return the result of the file that was submitted, and what is left of the budget."""
        return self._result("submit", {"idea": idea} | ({"source": source} if source is not None else {}))

    def profile(self, number: int) -> FileProfile:
        return FileProfile.model_validate(self._called("profile", {"number": number}))

    def history(self) -> TaskHistory:
        return TaskHistory.model_validate(self._called("history", {}))

    def _result(self, tool: str, arguments: dict[str, Any]) -> tuple[FileResult, str]:
        found = EvaluationAnswer.model_validate(self._called(tool, arguments | {"wait_s": _WAIT_S}))
        while found.result is None:
            again = self._called("result", {"ticket": found.ticket, "wait_s": _WAIT_S})
            found = EvaluationAnswer.model_validate(again)
        return found.result, found.left

    def _called(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            result = asyncio.run(self._call(tool, arguments))
        except Exception as error:  # groups of whatever the transport raises
            raise StorageError(
                f"the run of this workspace does not answer at {self.url} ({_first(error)})",
                "if the run has ended, its report has all results",
            ) from error
        if result.is_error or result.structured_content is None:
            said = " ".join(each.text for each in result.content if isinstance(each, TextContent))
            what, _, remedy = said.removeprefix(f"Error executing tool {tool}: ").partition(" — ")
            raise UsageError(what, remedy or "see AGENTS.md")
        return result.structured_content

    async def _call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        shell = Implementation(name="shell", version=kernelwright_version())
        async with (
            create_mcp_http_client(headers=self._headers) as http,
            Client(streamable_http_client(self.url, http_client=http), client_info=shell) as client,
        ):
            return await client.call_tool(tool, arguments)


def _first(error: BaseException) -> str:
    """Return the first error of a group, in a line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return (str(error) or type(error).__name__).splitlines()[0]
