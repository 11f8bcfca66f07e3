"""A workspace: a folder in which a coding agent works on one task.

    reference.py                          the task; what is written into it counts for nothing
    kernel.py                             the file to improve, at first the kernel to start from
    AGENTS.md                             the task, the rules, the machine, the loop
    .claude/skills/kernelwright/SKILL.md  the loop and its traps, for agents that load skills
    .mcp.json                             the MCP server, for clients that read it
    kernelwright                          runs this kernelwright, whatever the PATH of the shell
    .kernelwright.toml                    where the run is, that the commands go by

The run, with its database, is in another folder.
"""

import json
import shlex
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Self

from jinja2 import Environment, PackageLoader, StrictUndefined

from kernelwright.agent.tool.records import TaskDescription
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.results.store.folder import write_atomically

MARK = ".kernelwright.toml"
MCP = ".mcp.json"
KERNEL = "kernel.py"
SCRIPT = "kernelwright"
_FIX = "make one with `kernelwright workspace TASK DIR`"


@dataclass(frozen=True)
class Server:
    """The MCP server of a run that is under way: address, and bearer token."""

    url: str
    token: str


@dataclass(frozen=True)
class Workspace:
    """`run`: the folder of the run, or the server of one; `task`: the id of the task in it."""

    path: Path
    run: Path | Server
    task: str

    @classmethod
    def around(cls, start: Path) -> Self:
        """Return the workspace that a folder is in. Raises UsageError, StorageError."""
        start = start.resolve()
        for folder in (start, *start.parents):
            if (folder / MARK).is_file():
                return cls.read(folder)
        raise UsageError(f"{start} is in no workspace", _FIX)

    @classmethod
    def read(cls, folder: Path) -> Self:
        mark = folder / MARK
        try:
            found = tomllib.loads(mark.read_text())
            served = "server" in found
            run = Server(str(found["server"]), str(found["token"])) if served else Path(found["run"])
            return cls(folder, run, str(found["task"]))
        except OSError as error:
            raise StorageError(f"{mark} cannot be read: {error.strerror}", _FIX) from None
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{mark} is damaged: {error}", f"{_FIX} --resume RUN") from None

    @property
    def kernel(self) -> Path:
        return self.path / KERNEL

    def write(self, described: TaskDescription, kernel: str) -> None:
        """Write all files, except a kernel that is there already. Raises StorageError."""
        run = self.run
        if isinstance(run, Server):
            headers = {"Authorization": f"Bearer {run.token}"}
            server: dict[str, object] = {"type": "http", "url": run.url, "headers": headers}
            where = {"server": run.url, "token": run.token}
        else:
            server = {"command": sys.executable, "args": ["-m", "kernelwright", "mcp"]}
            where = {"run": str(run)}
        where["task"] = self.task
        mark = "".join(f"{name} = {json.dumps(word)}\n" for name, word in where.items())
        texts = {
            "reference.py": described.reference.strip() + "\n",
            "AGENTS.md": _render("AGENTS.md.j2", described, isinstance(run, Server)),
            "CLAUDE.md": "@AGENTS.md\n",
            ".claude/skills/kernelwright/SKILL.md": skill(),
            MCP: json.dumps({"mcpServers": {"kernelwright": server}}, indent=2) + "\n",
            SCRIPT: f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kernelwright "$@"\n',
            MARK: mark,
        }
        if not self.kernel.exists():
            texts[KERNEL] = kernel
        try:
            for name, text in texts.items():
                write_atomically(self.path / name, text)
            (self.path / SCRIPT).chmod(0o755)
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written ({error.strerror or error})", "choose another folder"
            ) from error


def skill() -> str:
    """Return the skill: how to use the referee, for any task."""
    return (files("kernelwright.agent.tool") / "templates" / "SKILL.md").read_text()


def _render(name: str, described: TaskDescription, served: bool) -> str:
    return _environment().get_template(name).render(found=described, served=served)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("kernelwright.agent.tool", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the output is Markdown, not HTML
        keep_trailing_newline=True,
    )
