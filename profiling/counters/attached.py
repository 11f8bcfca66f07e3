"""perf attached to a running process, switched on and off around the calls of interest.

https://man7.org/linux/man-pages/man1/perf-record.1.html (`--control`)
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, Self, TypeVar

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.channel import readable

ANSWER_S = 10.0
_DENIED = re.compile(r"paranoid|[Pp]ermission|not permitted|Access to performance|CAP_")
_FIX = (
    "sysctl kernel.perf_event_paranoid=1, or give the container CAP_PERFMON and a seccomp profile that "
    "allows perf_event_open"
)
T = TypeVar("T")


class Attached(ABC, Generic[T]):
    """perf attached to the threads that a process has now, and to those that they start."""

    def __init__(self, command: Sequence[str], pid: int) -> None:
        """Attach perf with this `command` and its options. Raises Unavailable if it cannot be attached."""
        self._command = command[0]
        self._folder = tempfile.TemporaryDirectory(prefix="kernelwright-perf-")
        self._written = Path(self._folder.name) / "written"
        theirs_r, self._switch = os.pipe()
        self._answers, theirs_w = os.pipe()
        words = (program(), *command, "-o", str(self._written), "-p", str(pid), "-D", "-1")
        self._process = subprocess.Popen(
            [*words, "--control", f"fd:{theirs_r},{theirs_w}"],
            pass_fds=(theirs_r, theirs_w),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(theirs_r)
        os.close(theirs_w)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Count events inside the block. Raises Unavailable."""
        self._tell("enable")
        yield
        self._tell("disable")

    def _tell(self, command: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._switch, f"{command}\n".encode())
        if not (readable(self._answers, ANSWER_S) and os.read(self._answers, 16).startswith(b"ack")):
            self._process.kill()
            raise Unavailable(why(self._process.communicate()[1]))

    def result(self) -> T:
        """Return the totals of all blocks and end perf. Raises Unavailable."""
        self._process.send_signal(signal.SIGINT)
        try:
            _, said = self._process.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"perf {self._command} did not end") from None
        found = self._read(self._written) if self._written.exists() else None
        if not found:
            raise Unavailable(why(said))
        return found

    @abstractmethod
    def _read(self, written: Path) -> T:
        """Parse the file written by perf; the result is empty if nothing was counted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        os.close(self._switch)
        os.close(self._answers)
        self._folder.cleanup()


def why(said: str) -> str:
    """Return the reason perf failed, and the fix, from its output."""
    if _DENIED.search(said):
        return f"the kernel denies access to counters: {_FIX}"
    if "unknown option" in said:
        return "this perf is older than Linux 5.10: install a newer one"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"perf failed: {lines[0] if lines else 'no output'}"


def program() -> str:
    """Return the path of perf. Raises Unavailable if it is not installed."""
    found = shutil.which("perf")
    if found is None:
        raise Unavailable("install perf (Debian: apt-get install linux-perf, Ubuntu: linux-tools-generic)")
    return found


def environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}  # counts without a comma
