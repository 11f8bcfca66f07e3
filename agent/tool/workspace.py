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
import os
import shlex
import shutil
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
from kernelwright.kernelbench.text_files import text_of
from kernelwright.results.store.folder import write_atomically

MARK = ".kernelwright.toml"
MCP = ".mcp.json"
KERNEL = "kernel.py"
SCRIPT = "kernelwright"
_SKILL = ".claude/skills/kernelwright/SKILL.md"
_NAMES = ("reference.py", "AGENTS.md", "CLAUDE.md", _SKILL, MCP, SCRIPT, MARK)
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
        """Read the mark of a workspace. Raises StorageError."""
        mark = folder / MARK
        try:
            found = tomllib.loads(text_of(mark))
        except OSError as error:
            raise StorageError(f"{mark} cannot be read: {error.strerror}", _FIX) from None
        except ValueError as error:
            raise StorageError(f"{mark} is damaged: {error}", _FIX) from None
        names = ("server", "token", "task") if "server" in found else ("run", "task")
        for name in names:
            word = found.get(name)
            if not isinstance(word, str) or not word.isprintable():
                raise StorageError(f"{mark} is damaged: `{name}` is no line of text", _FIX)
        where = Server(found["server"], found["token"]) if "server" in found else folder / found["run"]
        return cls(folder, where, found["task"])

    @property
    def kernel(self) -> Path:
        return self.path / KERNEL

    def write(self, described: TaskDescription, kernel: str, replace: bool = False) -> None:
        """Write all files, except a kernel that is there already, unless that is to be replaced.

        What else is in their place is removed: links, which would lead elsewhere, pipes and folders. Raises
        StorageError.
        """
        run = self.run
        if isinstance(run, Server):
            headers = {"Authorization": f"Bearer {run.token}"}
            server: dict[str, object] = {"type": "http", "url": run.url, "headers": headers}
            where = {"server": run.url, "token": run.token}
        else:
            server = {"command": sys.executable, "args": ["-P", "-m", "kernelwright", "mcp"]}
            where = {"run": str(run)}
        where["task"] = self.task
        mark = "".join(f"{name} = {json.dumps(word)}\n" for name, word in where.items())
        texts = {
            "reference.py": described.reference.strip() + "\n",
            "AGENTS.md": _render("AGENTS.md.j2", described, isinstance(run, Server)),
            "CLAUDE.md": "@AGENTS.md\n",
            _SKILL: skill(),
            MCP: json.dumps({"mcpServers": {"kernelwright": server}}, indent=2) + "\n",
            # -P: not the agent's own profile.py or mcp.py
            SCRIPT: f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m kernelwright "$@"\n',
            MARK: mark,
        }
        assert set(texts) == set(_NAMES)
        if replace or not self.kernel.is_file():
            texts[KERNEL] = kernel
        try:
            for name, text in texts.items():
                self._make_way(name)
                write_atomically(self.path / name, text)
            (self.path / SCRIPT).chmod(0o755)
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written ({error.strerror or error})", "choose another folder"
            ) from error

    def taken(self) -> list[str]:
        """Return the names of files to write that something has already, but for the kernel."""
        return [name for name in _NAMES if os.path.lexists(self.path / name)]

    def _make_way(self, name: str) -> None:
        """Remove what is in the place of a file and is none, and what is no folder above it."""
        path = self.path / name
        above = [each for each in path.parents if self.path in each.parents]
        for each in (*reversed(above), path):
            if each.is_dir() and not each.is_symlink():
                if each == path:
                    shutil.rmtree(each)
            elif each != path or each.is_symlink() or not each.is_file():
                each.unlink(missing_ok=True)


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
