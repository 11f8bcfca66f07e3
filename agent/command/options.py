"""Options of `run --coder command`."""

import importlib.util
import shutil
from typing import Annotated

import typer
from pydantic import Field

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.options import Section


class CommandOptions(Section):
    """Coding agent that writes the kernels, by its command line."""

    command: Annotated[str | None, typer.Option(help="Command line of a coding agent.")] = None
    attempts: Annotated[
        int, Field(ge=1), typer.Option(hidden=True, help="Starts of the command for each task.")
    ] = 1
    attempt_minutes: Annotated[
        float,
        Field(gt=0),
        typer.Option(metavar="X", hidden=True, help="Minutes for each attempt of the command."),
    ] = 60.0

    @property
    def program(self) -> str:
        """First word of the command, without its folder."""
        return ((self.command or "").split() or ["command"])[0].rpartition("/")[2]

    def check_command(self, coder: str) -> None:
        """Raise UsageError, or MissingPrerequisite for what such a run needs."""
        if (coder == "command") != bool(self.command and self.command.strip()):
            raise UsageError("--coder command and --command belong together", "give both, or neither")
        if coder != "command":
            return
        if importlib.util.find_spec("mcp") is None:
            raise MissingPrerequisite(
                "--coder command serves the MCP tools, which need the package mcp",
                "install it with: pip install 'mcp>=2.3,<3'",
            )
        if shutil.which("git") is None:
            raise MissingPrerequisite("--coder command needs git", "install it (apt-get install git)")
