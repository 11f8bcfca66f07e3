"""Attempts of a coding agent at a task, each in a git worktree of its own.

RUN/workspaces/TASK/start           the workspace as it was made, on the branch `main`
RUN/workspaces/TASK/attempt-1       the worktree of an attempt, on a branch of the same name
RUN/workspaces/TASK/attempt-1.log   what its command printed
RUN/workspaces/TASK/attempts.json   how the attempts ended; one that is not there goes on
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from kernelwright.agent.command.confinement import Confinement
from kernelwright.agent.tool.records import TaskDescription
from kernelwright.agent.tool.workspace import MARK, MCP, Server, Workspace
from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.evaluator.refusal import printable
from kernelwright.kernelbench.records import Record
from kernelwright.results.store.folder import write_atomically

PROMPT = (
    "Read AGENTS.md and do what it says: make kernel.py as fast as you can, and right, with `./kernelwright "
    "check`, `./kernelwright measure --profile` and `./kernelwright submit`. Nobody can answer questions."
)
_PROMPT = re.compile(r"""(["']?)\{prompt\}\1""")  # in quotes or not
_MOST_LOG = 64 << 20  # bytes; what comes after is dropped
_POLL_S = 0.2
_GRACE_S = 10.0  # between the request to end and the end
_PASSWORDS = ("PGPASSWORD", "PGPASSFILE")  # of a run's database
_GIT_S = 120.0  # for git, which may run what an agent has set up
_GIT = (
    "git", "-c", "user.name=kernelwright", "-c", "user.email=kernelwright@localhost",
    "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*",
)  # fmt: skip


class EndedAttempt(Record):
    """End of an attempt. `exit_status` is that of its command; `why` is empty if that ended by itself."""

    number: int
    seconds: float
    exit_status: int | None
    why: str = ""
    files: int  # that it had evaluated


_ENDED = TypeAdapter[tuple[EndedAttempt, ...]](tuple[EndedAttempt, ...])


@dataclass(frozen=True)
class TaskAttempts:
    """The attempts at one task. `folder`: RUN/workspaces/TASK, as an absolute path."""

    folder: Path
    task: str
    confinement: Confinement

    def ended(self) -> tuple[EndedAttempt, ...]:
        """Return the attempts that have ended, in order. Raises StorageError."""
        path = self._record
        if not path.exists():
            return ()
        try:
            return _ENDED.validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            first = str(error).splitlines()[0]
            raise StorageError(
                f"{path} cannot be read: {first}", "delete it to begin the attempts again"
            ) from None

    def record(self, attempt: EndedAttempt) -> None:
        text = _ENDED.dump_json((*self.ended(), attempt), indent=1).decode()
        write_atomically(self._record, text + "\n")

    def opened(self, number: int, described: TaskDescription, kernel: str, server: Server) -> Workspace:
        """Return the workspace of an attempt, made or as a killed run has left it.

        `kernel`: the file to begin with. Raises StorageError.
        """
        place = self.folder / f"attempt-{number}"
        workspace = Workspace(place, server, self.task)
        try:
            if (place / MARK).exists():
                workspace.write(described, kernel)
                return workspace
            try:
                self._begin(workspace, described, kernel)
            except StorageError:  # an earlier attempt may have spoiled the repository
                shutil.rmtree(self.folder / "start", ignore_errors=True)
                self._begin(workspace, described, kernel)
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot be written ({error.strerror or error})", "free some space"
            ) from error
        return workspace

    def _begin(self, workspace: Workspace, described: TaskDescription, kernel: str) -> None:
        """Make the worktree of an attempt and, before the first, the repository."""
        start, place = self.folder / "start", workspace.path
        if not (start / ".git").exists():
            shutil.rmtree(start, ignore_errors=True)
            Workspace(start, workspace.run, self.task).write(described, kernel)
            self._git(start, "init", "-q")
            self._git(start, "symbolic-ref", "HEAD", "refs/heads/main")
            (start / ".git" / "info").mkdir(exist_ok=True)
            (start / ".git" / "info" / "exclude").write_text(f"{MARK}\n{MCP}\n")
            self._commit(start, "The task, and a kernel to start from")
            (start / MARK).unlink()
            (start / MCP).unlink()
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        self._git(start, "worktree", "prune")
        self._git(start, "worktree", "add", "-q", "-f", "-B", place.name, str(place), "main")
        workspace.write(described, kernel, replace=True)
        self._commit(place, f"Start of attempt {place.name.rpartition('-')[2]}")

    def run(
        self, workspace: Workspace, command: str, limit_s: float, reason_to_stop: Callable[[], str | None]
    ) -> tuple[int | None, str]:
        """Run a command in a workspace to its end, or until there is a reason to stop it.

        Returns its exit status and the reason.
        """
        place = workspace.path
        log = place.with_name(f"{place.name}.log")
        words = self.confinement.words([self.folder / "start", place])
        shell = _PROMPT.sub(lambda _: shlex.quote(PROMPT), command)
        process = subprocess.Popen(
            [*words, "sh", "-c", shell],
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in _PASSWORDS},
        )
        assert process.stdout is not None
        copying = threading.Thread(target=_copy, args=(process.stdout, log), daemon=True)
        copying.start()
        reason, ends = "", time.monotonic() + limit_s
        try:
            while process.poll() is None:
                over = f"{limit_s / 60:g} minutes are over" if time.monotonic() > ends else None
                if (found := over or reason_to_stop()) is not None:
                    reason = found
                    break
                time.sleep(_POLL_S)
        finally:
            _end(process)
            copying.join(_GRACE_S)
        return process.returncode, reason

    def close(self, workspace: Workspace, said: str) -> None:
        """Commit what an attempt has left; what cannot be committed stays as it is."""
        with suppress(StorageError):
            self._commit(workspace.path, said)

    def _commit(self, place: Path, said: str) -> None:
        self._git(place, "add", "-A")
        self._git(place, "commit", "-q", "--allow-empty", "-m", said)

    def _git(self, place: Path, *words: str) -> None:
        """Run git where an agent may have written its settings: confined as the agent is, and not for long.

        Raises StorageError.
        """
        what = f"git {words[0]} in {place}"
        try:
            before = self.confinement.words([each for each in self.folder.iterdir() if each.is_dir()])
            with tempfile.TemporaryFile() as output:
                process = subprocess.Popen(
                    [*before, *_GIT, *words],
                    cwd=place,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                try:
                    status = process.wait(_GIT_S)
                finally:
                    _end(process)
                output.seek(max(0, output.seek(0, os.SEEK_END) - 1000))
                said = output.read().decode(errors="replace").strip().splitlines()
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StorageError(f"{what} fails: {error}", "see whether git works there") from None
        if status:
            last = said[-1] if said else "no message"
            raise StorageError(f"{what} fails: {last}", "see whether git works there")

    @property
    def _record(self) -> Path:
        return self.folder / "attempts.json"


def _copy(source: IO[bytes], log: Path) -> None:
    """Append what a command prints to a file, as far as there is room."""
    with source, log.open("ab", buffering=0) as file:
        while piece := source.read1(1 << 16):  # type: ignore[attr-defined]
            if file.tell() < _MOST_LOG:
                file.write(piece)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and all that is left of its session."""
    for sent, grace in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)


def last_line(log: Path) -> str:
    """Return the last line of a log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return printable(lines[-1], 300) if lines else "it prints nothing"
