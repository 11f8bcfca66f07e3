"""`perf stat` on a process that runs already, switched on and off around what is to be counted.

https://man7.org/linux/man-pages/man1/perf-stat.1.html
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernelbench.evaluator.channel import readable
from profiling.unavailable import Unavailable

HARDWARE = ("cycles", "instructions", "LLC-loads", "LLC-load-misses", "cache-misses", "branch-misses")
SOFTWARE = ("task-clock", "page-faults", "context-switches")
_EVENTS = ("-x", ",", "-e", ",".join((*SOFTWARE, *HARDWARE)))
_NOT_THERE = ("<not supported>", "<not counted>")
_DENIED = re.compile(r"paranoid|[Pp]ermission|not permitted|Access to performance|CAP_")
_MEND = (
    "sysctl kernel.perf_event_paranoid=1, or give the container CAP_PERFMON and a seccomp profile that "
    "allows perf_event_open"
)
_NO_COUNTERS = (
    "this machine shows no counters of its processor: use bare metal, or give the virtual machine a PMU"
)
_ANSWER_S = 10.0


def parsed(text: str) -> dict[str, float]:
    """Event -> count, from what `perf stat -x,` prints; events that were not counted are left out.

    perf has scaled what it could count for a part of the time only. "task-clock" is in ms.
    """
    found = {}
    for line in text.splitlines():
        fields = line.split(",")
        if line.startswith("#") or len(fields) < 3 or fields[0] in _NOT_THERE:
            continue
        event, _, modifier = fields[2].partition(":")
        if event == "context-switches" and "u" in modifier:
            continue  # the kernel makes them, and may not be counted: 0 says nothing
        with contextlib.suppress(ValueError):
            found[event] = float(fields[0])
    return found


def granted() -> set[str]:
    """The events that can be counted here, by trying. Raises Unavailable where that is none."""
    words = (_perf(), "stat", *_EVENTS, "--", "true")
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, env=_environment(), timeout=_ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"perf stat took longer than {_ANSWER_S:g} s") from None
    found = set(parsed(done.stderr))
    if done.returncode or not found:
        raise Unavailable(why(done.stderr))
    return found


def lacking(events: set[str]) -> str:
    """Why some are not among these events, which were granted; empty where all are."""
    missing = [event for event in (*SOFTWARE, *HARDWARE) if event not in events]
    if not missing:
        return ""
    reason = _NO_COUNTERS if set(missing) >= set(HARDWARE) else "not counted here"
    return f"without {', '.join(missing)}: {reason}"


def why(said: str) -> str:
    """Why perf failed, and the mend, from what it said."""
    if _DENIED.search(said):
        return f"the kernel lets nobody count: {_MEND}"
    if "unknown option" in said:
        return "this perf is older than Linux 5.10: install a newer one"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"perf stat failed: {lines[0] if lines else 'it says nothing'}"


class Counting:
    """perf attached to the threads that a process has now, and to those that they start."""

    def __init__(self, pid: int) -> None:
        """Raises Unavailable where it cannot be attached."""
        self._folder = tempfile.TemporaryDirectory(prefix="kernelwright-perf-")
        self._counts = Path(self._folder.name) / "counts"
        theirs_r, self._switch = os.pipe()
        self._answers, theirs_w = os.pipe()
        words = (_perf(), "stat", *_EVENTS, "-o", str(self._counts), "-p", str(pid), "-D", "-1")
        self._process = subprocess.Popen(
            [*words, "--control", f"fd:{theirs_r},{theirs_w}"],
            pass_fds=(theirs_r, theirs_w),
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(theirs_r)
        os.close(theirs_w)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """What happens in the block counts. Raises Unavailable."""
        self._tell("enable")
        yield
        self._tell("disable")

    def _tell(self, command: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._switch, f"{command}\n".encode())
        if not (readable(self._answers, _ANSWER_S) and os.read(self._answers, 16).startswith(b"ack")):
            self._process.kill()
            raise Unavailable(why(self._process.communicate()[1]))

    def counts(self) -> dict[str, float]:
        """What `parsed` finds of all blocks together; ends the counting. Raises Unavailable."""
        self._process.send_signal(signal.SIGINT)
        try:
            _, said = self._process.communicate(timeout=_ANSWER_S)
        except subprocess.TimeoutExpired:
            raise Unavailable("perf stat did not end") from None
        found = parsed(self._counts.read_text()) if self._counts.exists() else {}
        if not found:
            raise Unavailable(why(said))
        return found

    def __enter__(self) -> "Counting":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        os.close(self._switch)
        os.close(self._answers)
        self._folder.cleanup()


def _perf() -> str:
    found = shutil.which("perf")
    if found is None:
        raise Unavailable("install perf (Debian: apt-get install linux-perf, Ubuntu: linux-tools-generic)")
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}  # counts without a comma
